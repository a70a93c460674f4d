#include "backends/cuda/bench/cublaslt_peer.h"

// Types only; a toolkit may come without it.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define NIBBLE_CUBLASLT_HEADER 1
#endif
#include <dlfcn.h>

#include <type_traits>

#include "nibble/error.h"

namespace nibble::cuda {

#if defined(NIBBLE_CUBLASLT_HEADER)

struct CublasLtPeer::Api {
  cublasLtHandle_t handle = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  ~Api() {
    if (handle != nullptr) destroy(handle);
  }
  // Empty, or what is missing. The library stays loaded, as cuBLAS does.
  std::string load() {
    void* library = nullptr;
    // What is used of their interface is the same.
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      return "expected libcublasLt.so.13, .12 or libcublasLt.so among the shared libraries, found none "
             "(LD_LIBRARY_PATH may name the toolkit's lib64)";
    }
    std::string missing;
    const auto find = [&](const char* name, auto& f) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
      if (f == nullptr) missing = std::string("libcublasLt has no ") + name;
    };
    find("cublasLtCreate", create);
    find("cublasLtDestroy", destroy);
    find("cublasLtGetVersion", version);
    find("cublasLtMatmulDescCreate", desc_create);
    find("cublasLtMatmulDescSetAttribute", desc_set);
    find("cublasLtMatmulDescDestroy", desc_destroy);
    find("cublasLtMatrixLayoutCreate", layout_create);
    find("cublasLtMatrixLayoutDestroy", layout_destroy);
    find("cublasLtMatmulPreferenceCreate", preference_create);
    find("cublasLtMatmulPreferenceSetAttribute", preference_set);
    find("cublasLtMatmulPreferenceDestroy", preference_destroy);
    find("cublasLtMatmulAlgoGetHeuristic", heuristic);
    find("cublasLtMatmul", matmul);
    return missing;
  }
  static void check(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const bool lacks = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
    throw Error(lacks ? ErrorCode::unsupported : ErrorCode::internal,
                std::string("[cuda] roofs: cuBLASLt: ") + what + ": status " + std::to_string(static_cast<int>(status)));
  }
};

struct CublasLtPeer::Plan {
  explicit Plan(const Api& of) : api(of) {}
  ~Plan() {
    if (preference != nullptr) api.preference_destroy(preference);
    for (const cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) api.layout_destroy(layout);
    }
    if (desc != nullptr) api.desc_destroy(desc);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  const Api& api;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};
void CublasLtPeer::PlanDeleter::operator()(Plan* plan) const { delete plan; }

CublasLtPeer::CublasLtPeer() {
  auto api = std::make_unique<Api>();
  text_ = api->load();
  if (!text_.empty()) return;
  if (const cublasStatus_t status = api->create(&api->handle); status != CUBLAS_STATUS_SUCCESS) {
    api->handle = nullptr;
    text_ = "libcublasLt cannot be used on this card: status " + std::to_string(static_cast<int>(status));
    return;
  }
  const std::size_t v = api->version();
  text_ = "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
  api_ = std::move(api);
}

CublasLtPeer::Product CublasLtPeer::fp8_product(std::int64_t n, std::int64_t k, std::int64_t rows) {
  const Api& api = *api_;
  Product made(new Plan(api));
  Plan& p = *made;
  Api::check(api.desc_create(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  // It takes columns as contiguous: w is then [K, N], x [K, T] and y [N, T]; of FP8 it has this order alone.
  const cublasOperation_t turned = CUBLAS_OP_T, as_is = CUBLAS_OP_N;
  const std::int8_t fast = 1;
  Api::check(api.desc_set(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned), "describing a product");
  Api::check(api.desc_set(p.desc, CUBLASLT_MATMUL_DESC_TRANSB, &as_is, sizeof as_is), "describing a product");
  Api::check(api.desc_set(p.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast), "describing a product");
  const auto u = [](std::int64_t size) { return static_cast<std::uint64_t>(size); };
  Api::check(api.layout_create(&p.w, CUDA_R_8F_E4M3, u(k), u(n), k), "describing w");
  Api::check(api.layout_create(&p.x, CUDA_R_8F_E4M3, u(k), u(rows), k), "describing x");
  Api::check(api.layout_create(&p.y, CUDA_R_16BF, u(n), u(rows), n), "describing y");
  Api::check(api.preference_create(&p.preference), "choosing an algorithm");
  const std::size_t bytes = kWorkspaceBytes;
  Api::check(api.preference_set(p.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
             "choosing an algorithm");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      api.heuristic(api.handle, p.desc, p.w, p.x, p.y, p.y, p.preference, 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count < 1) {
    throw Error(ErrorCode::unsupported, text_ + " has no product of FP8 on this card: status " +
                                            std::to_string(static_cast<int>(status)));
  }
  p.algorithm = found.algo;
  return made;
}

void CublasLtPeer::run(const Product& product, const std::byte* w, const std::byte* x, std::byte* y, std::byte* workspace,
                       cudaStream_t stream) {
  const Plan& p = *product;
  const float one = 1, zero = 0;
  Api::check(api_->matmul(api_->handle, p.desc, &one, w, p.w, x, p.x, &zero, y, p.y, y, p.y, &p.algorithm, workspace,
                          kWorkspaceBytes, stream),
             "a product");
}

#else

struct CublasLtPeer::Api {};
struct CublasLtPeer::Plan {};
void CublasLtPeer::PlanDeleter::operator()(Plan* plan) const { delete plan; }
CublasLtPeer::CublasLtPeer() : text_("this build had no cublasLt.h") {}
CublasLtPeer::Product CublasLtPeer::fp8_product(std::int64_t, std::int64_t, std::int64_t) { return nullptr; }
void CublasLtPeer::run(const Product&, const std::byte*, const std::byte*, std::byte*, std::byte*, cudaStream_t) {}

#endif

CublasLtPeer::~CublasLtPeer() = default;

}  // namespace nibble::cuda
