// limits_test.cpp: templates that want all time, memory or stack get an error with a line.
#include <gtest/gtest.h>

#include <thread>

#include "nibble/error.h"
#include "tests/chat/support.h"

namespace nibble {
namespace {

std::string repeat(const std::string& s, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += s;
  return out;
}

// Small limits, so that a build with sanitizers is through in seconds, too.
RenderOptions small() {
  RenderOptions how = test::fixed_clock();
  how.limits.memory_bytes = 24u << 20;
  how.limits.output_bytes = 8u << 20;
  how.limits.steps = 2'000'000;
  return how;
}

void expect_error(const std::string& source, const std::string& part,
                  const RenderOptions& how = small()) {
  const std::string error = test::failure(source, Json(Json::Object()), how);
  EXPECT_NE(error.find(part), std::string::npos) << source.substr(0, 200) << "\n" << error;
  EXPECT_TRUE(error.starts_with("t: line ")) << error;
}

TEST(ChatLimits, Defaults) {
  const RenderOptions how = test::fixed_clock();
  expect_error("{{ 'a' * 10**9 }}", "the template needs more than 268435456 bytes", how);
  expect_error("{{ ('a' * 10**6) * 65 }}{{ ('a' * 10**6) * 3 }}",
               "the output is larger than 67108864 bytes", how);
  expect_error("{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}",
               "the template takes more than 20000000 steps", how);
  expect_error(repeat(" ", (1 << 20) + 1), "are read", how);
}

TEST(ChatLimits, Size) {
  expect_error("{{ range(10**9) | list }}", "a range of more than");
  expect_error("\n{{ 'a' * 10**9 }}", "t: line 2: the template needs more than");
  expect_error("{{ [0] * 10**9 }}", "bytes of memory");
  expect_error("{{ 'a' * 10**18 }}", "bytes of memory");
  expect_error("{{ 2 ** 10 ** 9 }}", "integer overflow");
  expect_error("{{ 'x'.center(10**12) }}", "bytes of memory");
  expect_error("{{ '%999999999d' % 1 }}", "width or precision above");
  expect_error("{{ '{:999999999}'.format(1) }}", "width or precision above");
  expect_error("{{ '%*d' % (10**9, 1) }}", "within bounds");
  expect_error("{{ ('a' * 1000000).replace('', 'b' * 100) }}", "bytes of memory");
  expect_error("{{ [1] | batch(10**10, 0) | list }}", "bytes of memory");
  expect_error("{{ [1] | slice(10**10) | list }}", "slices");
  expect_error("{{ {'a': 1} | tojson(indent=10**10) }}", "bytes of memory");
  expect_error("{{ 'a\nb' | indent(10**10) }}", "bytes of memory");
  // Unfinished texts count: each level holds its part while the next is made.
  expect_error("{{ " + repeat("('a' * 10**6) ~ (", 100) + "1" + repeat(")", 100) + " }}",
               "bytes of memory");
  expect_error(
      "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "bytes of memory");
  expect_error(
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "bytes of memory");
  // A small value that is huge when printed.
  expect_error(
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% "
      "endfor %}{{ ns.s }}",
      "more than");
  expect_error(
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% "
      "endfor %}{{ ns.s | tojson }}",
      "more than");
}

TEST(ChatLimits, Output) {
  RenderOptions how;
  how.limits.output_bytes = 100;
  const Json none{Json::Object()};
  EXPECT_EQ(ChatTemplate("{{ 'a' * 100 }}", "t").render(none, how).size(), 100u);
  EXPECT_EQ(test::failure("{{ 'a' * 101 }}", none, how),
            "t: line 1: the output is larger than 100 bytes");
  expect_error("{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}",
               "the output is larger than");
  expect_error("{% set x %}{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}{% endset %}",
               "bytes of memory");
}

TEST(ChatLimits, Time) {
  const std::string loop = "{% for i in range(100000) %}";
  expect_error(repeat(loop, 4) + repeat("{% endfor %}", 4), "steps");
  RenderOptions how;
  how.limits.steps = 1000;
  const Json none{Json::Object()};
  EXPECT_EQ(
      ChatTemplate("{% for i in range(100) %}{{ i }}{% endfor %}", "t").render(none, how).size(),
      190u);
  EXPECT_NE(
      test::failure("{% for i in range(1000) %}{{ i }}{% endfor %}", none, how).find("1000 steps"),
      std::string::npos);
  // Searches stay linear: a needle that nearly matches everywhere.
  expect_error(
      "{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 ~ 'b' %}{{ b in a }}{{ a.rfind(b) }}"
      "{{ a.count(b) }}{{ a.replace(b, '') | length }}{{ a.strip(b) }}{{ 1 // 0 }}",
      "division");
  // Equality of two values that share their parts in 2^60 ways.
  expect_error(
      "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}"
      "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
      "steps");
}

TEST(ChatLimits, Depth) {
  for (const char* open : {"(", "[", "{1:", "-", "not ", "a[", "a(", "1 if 1 else ", "a|d("}) {
    expect_error("{{ " + repeat(open, 20000) + "1", "nested deeper than");
  }
  for (const char* link : {" + 1", " * 1", ".a", "[0]", "()", "|d", " and 1", " or 1", " ** 1"}) {
    expect_error("{{ a" + repeat(link, 20000) + " }}", "levels");
  }
  expect_error(repeat("{% if 1 %}", 20000), "nested deeper than");
  expect_error(repeat("{% for x in [1] %}", 20000), "nested deeper than");
  expect_error("{% set " + repeat("(", 20000) + "a", "nested deeper than");
  EXPECT_EQ(test::render("{{ 0" + repeat(" ~ 1", 5000) + " }}").size(), 5001u);
  EXPECT_EQ(test::render("{{ 0" + repeat(" + 1", 200) + " }}"), "200");
  EXPECT_EQ(test::render("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% else %}x{% endif %}"),
            "x");
}

TEST(ChatLimits, Recursion) {
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", "recursion deeper than");
  expect_error(
      "{% macro m(x) %}{% if 1 %}{% for i in [1] %}{{ [m(x ~ x)] | join }}{% endfor %}{% endif "
      "%}{% endmacro %}{{ m('') }}",
      "recursion deeper than");
  expect_error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion deeper than");
  expect_error(
      "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller }}{% endmacro %}{{ m() }}",
      "recursion deeper than");
  expect_error("{% block a %}{{ self.a() }}{% endblock %}", "recursion deeper than");
  // A hundred levels are no attack.
  EXPECT_EQ(test::render("{% macro m(n) %}{% if n %}{% for i in [1] %}{{ n % 10 }}{{ m(n - 1) }}{% "
                         "endfor %}{% endif %}{% endmacro %}"
                         "{{ m(100) | length }}"),
            "100");
}

TEST(ChatLimits, NestedValues) {
  for (const char* grow :
       {"[ns.x]", "(ns.x,)", "{'a': ns.x}", "[ns.x] | map('string', ns.x) if 0 else [ns.x]",
        "dict(a=ns.x)", "{'a': ns.x}.get", "cycler(ns.x)", "[ns.x] | reverse",
        "{'a': ns.x}.items()"}) {
    expect_error("{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = " +
                     std::string(grow) + " %}{% endfor %}",
                 "nested deeper than");
  }
  Json deep;
  for (int i = 0; i < 1000; ++i) deep = Json(Json::Array{deep});
  Json input{Json::Object()};
  input.set("x", deep);
  EXPECT_NE(test::failure("{{ x }}", input, {}).find("nested deeper than"), std::string::npos);
}

// Cycles must neither hang a print nor leak (the sanitizer build looks for leaks).
TEST(ChatLimits, Cycles) {
  expect_error("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "recursion deeper than");
  EXPECT_EQ(
      test::render(
          "{% set ns = namespace() %}{% set ns.me = [ns] %}"
          "{% for i in range(3) %}{% set l = loop %}{% set ns.l = loop %}{% set ns.c = "
          "loop.changed(loop) %}"
          "{% macro m() %}{{ m }}{% endmacro %}{% set ns.m = m %}{% set keep = ns.m %}{% endfor %}"
          "{% macro k() %}{% set ns.caller = caller %}{% endmacro %}"
          "{% for i in range(3) %}{% set old = ns.caller %}{% call k() %}{{ i }}{% endcall %}{% "
          "endfor %}"
          "{{ ns.m() }}{{ ns.caller() }}{{ ns.l.last }}"),
      "<Macro 'm'>2True");
  // Links from one scope to the one before, twenty thousand times.
  EXPECT_EQ(
      test::render("{% set ns = namespace() %}{% macro k() %}{% set ns.c = caller %}{% endmacro %}"
                   "{% for i in range(20000) %}{% set old = ns.c %}{% call k() %}{% endcall %}{% "
                   "endfor %}ok"),
      "ok");
  EXPECT_EQ(test::render("{% set ns = namespace() %}{% for i in range(20000) %}{% set old = ns.l %}"
                         "{% for j in [1] if j %}{% set ns.l = loop %}{% endfor %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(test::render("{% set ns = namespace(n=none) %}{% for i in range(20000) %}"
                         "{% set ns.n = namespace(n=ns.n) %}{% endfor %}ok"),
            "ok");
}

TEST(ChatLimits, ManyThreadsShareATemplate) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role ~ ': ' ~ m.content | upper }};{% endfor %}", "t");
  const Json input = Json::parse(R"({"messages": [{"role": "user", "content": "hi"}]})", "input");
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (std::size_t k = 0; k < good.size(); ++k) {
    threads.emplace_back([&, k] {
      for (int i = 0; i < 200; ++i) good[k] += chat.render(input) == "user: HI;";
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, std::vector<int>(4, 200));
}

}  // namespace
}  // namespace nibble
