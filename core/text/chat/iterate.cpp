// iterate.cpp: what can be walked, and how long it is.
#include "core/text/chat/loop.h"
#include "core/text/chat/py_text.h"
#include "core/text/chat/run.h"

namespace nibble::chat {

bool iterable(const Value& v) {
  switch (v.kind) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::range:
    case Kind::view:
    case Kind::iterator:
    case Kind::loop:
      return true;
    default:
      return false;
  }
}

std::vector<Value> items_of(Run& run, const Value& v) {
  std::vector<Value> out;
  const auto reserve = [&](std::size_t n) {
    run.room(n * sizeof(Value));
    run.step(n / 2);
    out.reserve(n);
  };
  switch (v.kind) {
    case Kind::undefined:
      return out;
    case Kind::string: {
      const std::string& s = text_of(v);
      reserve(str_of(v).points);
      for (std::size_t at = 0; at < s.size();) {
        int n;
        decode_at(s, at, &n);
        out.push_back(run.text_like(v, s.substr(at, static_cast<std::size_t>(n))));
        at += static_cast<std::size_t>(n);
      }
      return out;
    }
    case Kind::list:
    case Kind::tuple:
      reserve(seq_of(v).items.size());
      return seq_of(v).items;
    case Kind::dict:
      reserve(dict_of(v).items.size());
      for (const auto& [k, value] : dict_of(v).items) out.push_back(k);
      return out;
    case Kind::range: {
      const Range& r = range_of(v);
      reserve(r.size);
      for (std::size_t i = 0; i < r.size; ++i) {
        out.push_back(Value::integer(r.at(static_cast<std::int64_t>(i))));
      }
      return out;
    }
    case Kind::view: {
      const View& view = view_of(v);
      reserve(view.dict->items.size());
      for (const auto& [k, value] : view.dict->items) {
        out.push_back(view.what == ViewOf::keys     ? k
                      : view.what == ViewOf::values ? value
                                                    : run.tuple({k, value}));
      }
      return out;
    }
    case Kind::iterator: {
      Iterator& it = iterator_of(v);
      reserve(it.items.size() - it.at);
      out.assign(it.items.begin() + static_cast<std::ptrdiff_t>(it.at), it.items.end());
      it.at = it.items.size();
      return out;
    }
    default:
      run.fail(std::string("expected something to iterate over, found ") + type_name(v));
  }
}

std::size_t length_of(Run& run, const Value& v) {
  switch (v.kind) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return str_of(v).points;
    case Kind::list:
    case Kind::tuple:
      return seq_of(v).items.size();
    case Kind::dict:
      return dict_of(v).items.size();
    case Kind::range:
      return range_of(v).size;
    case Kind::view:
      return view_of(v).dict->items.size();
    case Kind::loop:
      return static_cast<std::size_t>(loop_of(v).length(run));
    default:
      run.fail(std::string("a ") + type_name(v) + " has no length");
  }
}

}  // namespace nibble::chat
