#include "backends/cuda/trace.h"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "nibble/error.h"

namespace nibble::cuda {
namespace {

// CUPTI calls back without an argument of ours, hence one collector for the process.
struct Collector {
  std::mutex mutex;
  bool active = false;
  CUptiResult (*next)(std::uint8_t*, std::size_t, CUpti_Activity**) = nullptr;
  struct Raw {
    TraceEvent event;
    std::uint32_t correlation = 0;
  };
  std::vector<Raw> raw;
  std::unordered_map<std::uint32_t, std::uint64_t> run_of;
};

Collector& collector() {
  static Collector c;
  return c;
}

// The name that the source has, without parameters.
std::string readable(const char* symbol) {
  int status = 0;
  char* const text = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : symbol;
  std::free(text);
  const std::size_t space = name.find("nibble::cuda::");
  if (space != std::string::npos) name.erase(0, space + 14);
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  for (std::size_t at = 0; (at = name.find(kUnnamed)) != std::string::npos;) name.erase(at, kUnnamed.size());
  if (name.starts_with("void ")) name.erase(0, 5);
  return name.substr(0, name.find('('));
}

const char* copy_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on device";
    default:
      return "copy";
  }
}

void take(Collector& c, const CUpti_Activity* record) {
  const auto event = [](TraceEvent::Kind kind, std::string name, std::uint64_t start,
                        std::uint64_t end, std::uint64_t bytes) {
    TraceEvent e;
    e.kind = kind;
    e.name = std::move(name);
    e.start_ns = static_cast<std::int64_t>(start);
    e.end_ns = static_cast<std::int64_t>(end);
    e.bytes = bytes;
    return e;
  };
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      c.raw.push_back({event(TraceEvent::Kind::kernel, readable(k->name), k->start, k->end, 0),
                       k->correlationId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      c.raw.push_back(
          {event(TraceEvent::Kind::copy, copy_name(m->copyKind), m->start, m->end, m->bytes),
           m->correlationId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      c.raw.push_back({event(TraceEvent::Kind::set, "set memory", m->start, m->end, m->bytes),
                       m->correlationId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto* e = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      c.run_of[e->correlationId] = e->externalId;
      break;
    }
    default:
      break;
  }
}

constexpr std::size_t kBufferBytes = 4u << 20;

void CUPTIAPI buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records = 0;
}

void CUPTIAPI buffer_completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                               std::size_t valid) {
  Collector& c = collector();
  const std::lock_guard lock(c.mutex);
  CUpti_Activity* record = nullptr;
  while (c.next(buffer, valid, &record) == CUPTI_SUCCESS) take(c, record);
  std::free(buffer);
}

constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    // an external correlation is recorded only beside the calls that it belongs to
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

}  // namespace

struct Tracer::Api {
  void* library = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;

  Api() {
    // The name that this toolkit's headers belong to, else whatever the loader knows.
    const std::string versioned = "libcupti.so." + std::to_string(CUDA_VERSION / 1000);
    for (const char* name : {versioned.c_str(), "libcupti.so"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      throw Error(ErrorCode::unsupported,
                  "[cuda] a trace needs CUPTI: expected " + versioned +
                      " among the shared libraries, found none (it comes with the "
                      "CUDA toolkit; LD_LIBRARY_PATH may name its folder)");
    }
    find("cuptiActivityRegisterCallbacks", register_callbacks);
    find("cuptiActivityEnable", enable);
    find("cuptiActivityDisable", disable);
    find("cuptiActivityFlushAll", flush);
    find("cuptiGetTimestamp", timestamp);
    find("cuptiActivityPushExternalCorrelationId", push);
    find("cuptiActivityPopExternalCorrelationId", pop);
    find("cuptiActivityGetNextRecord", collector().next);
  }

  template <class F>
  void find(const char* name, F& f) {
    f = reinterpret_cast<F>(dlsym(library, name));
    if (f == nullptr)
      throw Error(ErrorCode::unsupported, std::string("[cuda] CUPTI has no ") + name);
  }
  static void check(CUptiResult r, const char* what) {
    if (r == CUPTI_SUCCESS) return;
    // What the driver, its owner or another profiler does not grant is absent; the rest went wrong.
    const bool absent = r == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES || r == CUPTI_ERROR_NOT_SUPPORTED ||
                        r == CUPTI_ERROR_NOT_COMPATIBLE ||
                        r == CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED ||
                        r == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    throw Error(absent ? ErrorCode::unsupported : ErrorCode::internal,
                std::string("[cuda] trace: ") + what + ": CUPTI error " +
                    std::to_string(static_cast<int>(r)));
  }
};

Tracer::Tracer() {
  Collector& c = collector();
  {
    const std::lock_guard lock(c.mutex);
    if (c.active)
      throw Error(ErrorCode::invalid_argument, "[cuda] another trace is running in this process");
    c.active = true;
    c.raw.clear();
    c.run_of.clear();
  }
  try {
    api_ = std::make_unique<Api>();
    Api::check(api_->register_callbacks(buffer_requested, buffer_completed), "registering");
    for (const CUpti_ActivityKind kind : kKinds) Api::check(api_->enable(kind), "enabling records");
    std::uint64_t now = 0;
    Api::check(api_->timestamp(&now), "reading the clock");
    start_ns_ = static_cast<std::int64_t>(now);
  } catch (...) {
    c.active = false;
    throw;
  }
}

Tracer::~Tracer() {
  if (!api_) return;
  for (const CUpti_ActivityKind kind : kKinds) api_->disable(kind);
  api_->flush(1);
  const std::lock_guard lock(collector().mutex);
  collector().active = false;
}

void Tracer::begin_run(std::uint64_t run) {
  api_->push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, run);
}

void Tracer::end_run() {
  std::uint64_t last = 0;
  api_->pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
}

Tracer::Result Tracer::finish() {
  Result result;
  std::uint64_t now = 0;
  Api::check(api_->timestamp(&now), "reading the clock");
  Api::check(api_->flush(1), "reading records");
  result.start_ns = start_ns_;
  result.end_ns = static_cast<std::int64_t>(now);
  Collector& c = collector();
  const std::lock_guard lock(c.mutex);
  for (Collector::Raw& r : c.raw) {
    const auto run = c.run_of.find(r.correlation);
    result.records.push_back({std::move(r.event), run == c.run_of.end() ? 0 : run->second});
  }
  c.raw.clear();
  std::sort(result.records.begin(), result.records.end(),
            [](const Record& a, const Record& b) { return a.event.start_ns < b.event.start_ns; });
  return result;
}

}  // namespace nibble::cuda
