#include <charconv>
#include <string>

#include "core/api/registries.h"
#include "core/base/quote.h"
#include "nibble/error.h"
#include "nibble/options.h"

namespace nibble {
namespace {

constexpr const char* kForm =
    "expected a backend and, after a colon, a card's number or profile=, mirror=, arch-path=, threads=, kernels=, "
    "graphs=, fused-pack=, fused-swiglu=, fused-delta=, fused-linears=, fused-add-norm=, fused-gate= or packing= pairs "
    "(\"cuda:1\", \"cpu:mirror=sm90\")";

[[noreturn]] void refuse(std::string_view text, const std::string& found) {
  throw Error(ErrorCode::invalid_argument,
              "[device] " + std::string(kForm) + ", found " + found + " in " + in_quotes(text));
}

bool whole(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

Device Device::cpu(int threads) {
  Device d;
  d.threads = threads;
  return d;
}

Device Device::best() {
  Device d;
  for (const BackendEntry& e : registries().backends) {
    if (e.refusal().empty()) {
      d.backend = e.name;
      break;
    }
  }
  return d;
}

Device Device::parse(std::string_view text) {
  Device d;
  const std::size_t colon = text.find(':');
  d.backend = text.substr(0, colon);
  if (d.backend.empty()) refuse(text, "no name");
  if (colon == std::string_view::npos) return d;
  std::string_view rest = text.substr(colon + 1);
  std::string seen = ",";  // of keys, each between commas; a card's number has none
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = rest.substr(0, comma);
    rest = more ? rest.substr(comma + 1) : std::string_view();
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    const auto found = [&] { return item.empty() ? std::string("nothing") : in_quotes(item); };
    const std::string mark = (equals == std::string_view::npos ? std::string("number") : std::string(key)) + ",";
    if (seen.find("," + mark) != std::string::npos) refuse(text, found() + " a second time");
    seen += mark;
    if (equals == std::string_view::npos) {
      if (!whole(item, d.index)) refuse(text, found());
    } else if (value.empty()) {
      refuse(text, found());
    } else if (key == "mirror") {
      d.mirror = value;
    } else if (key == "profile") {
      d.profile = value;
    } else if (key == "arch-path") {
      d.arch_path = value;
    } else if (key == "kernels") {
      d.kernels = value;
    } else if (key == "graphs" && (value == "on" || value == "off")) {
      d.graphs = value == "on";
    } else if (key == "fused-pack" && (value == "on" || value == "off")) {
      d.fused_pack = value == "on";
    } else if (key == "fused-swiglu" && (value == "on" || value == "off")) {
      d.fused_swiglu = value == "on";
    } else if (key == "fused-delta" && (value == "on" || value == "off")) {
      d.fused_delta = value == "on";
    } else if (key == "fused-linears" && (value == "on" || value == "off")) {
      d.fused_linears = value == "on";
    } else if (key == "fused-add-norm" && (value == "on" || value == "off")) {
      d.fused_add_norm = value == "on";
    } else if (key == "fused-gate" && (value == "on" || value == "off")) {
      d.fused_gate = value == "on";
    } else if (key == "packing" && (value == "on" || value == "off")) {
      d.packing = value == "on";
    } else if (key != "threads" || !whole(value, d.threads)) {
      refuse(text, found());
    }
  }
  return d;
}

std::string Device::text() const {
  std::string items;
  const auto add = [&](const std::string& item) { items += (items.empty() ? ":" : ",") + item; };
  if (index != 0) add(std::to_string(index));
  if (!profile.empty()) add("profile=" + profile);
  if (!mirror.empty()) add("mirror=" + mirror);
  if (!arch_path.empty()) add("arch-path=" + arch_path);
  if (threads != 0) add("threads=" + std::to_string(threads));
  if (!graphs) add("graphs=off");
  if (fused_pack) add(*fused_pack ? "fused-pack=on" : "fused-pack=off");
  if (fused_swiglu) add(*fused_swiglu ? "fused-swiglu=on" : "fused-swiglu=off");
  if (fused_delta) add(*fused_delta ? "fused-delta=on" : "fused-delta=off");
  if (fused_linears) add(*fused_linears ? "fused-linears=on" : "fused-linears=off");
  if (fused_add_norm) add(*fused_add_norm ? "fused-add-norm=on" : "fused-add-norm=off");
  if (fused_gate) add(*fused_gate ? "fused-gate=on" : "fused-gate=off");
  if (!packing) add("packing=off");
  if (!kernels.empty()) add("kernels=" + kernels);
  return backend + items;
}

}  // namespace nibble
