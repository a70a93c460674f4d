#include "backends/cuda/bench/cublas_peer.h"

// Types only; a toolkit may come without it.
#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#define NIBBLE_CUBLAS_HEADER 1
#endif
#include <dlfcn.h>

#include <type_traits>

#include "nibble/error.h"

namespace nibble::cuda {

#if defined(NIBBLE_CUBLAS_HEADER)

struct CublasPeer::Api {
  // The header has a second function of this name.
  using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                  const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                                  int, const void*, void*, cudaDataType, int, cublasComputeType_t,
                                  cublasGemmAlgo_t);
  cublasHandle_t handle = nullptr;
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasGetVersion_v2) version = nullptr;
  Gemm gemm = nullptr;

  ~Api() {
    if (handle != nullptr) destroy(handle);
  }
  // Empty, or what is missing. The library stays loaded: it does not bear being unloaded.
  std::string load() {
    void* library = nullptr;
    // What is used of their interface is the same.
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      return "expected libcublas.so.13, .12 or libcublas.so among the shared libraries, found none "
             "(LD_LIBRARY_PATH may name the toolkit's lib64)";
    }
    std::string missing;
    const auto find = [&](const char* name, auto& f) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
      if (f == nullptr) missing = std::string("libcublas has no ") + name;
    };
    find("cublasCreate_v2", create);
    find("cublasDestroy_v2", destroy);
    find("cublasSetStream_v2", set_stream);
    find("cublasSetWorkspace_v2", set_workspace);
    find("cublasGetVersion_v2", version);
    find("cublasGemmEx", gemm);
    return missing;
  }
  static void check(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const bool lacks = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
    throw Error(lacks ? ErrorCode::unsupported : ErrorCode::internal,
                std::string("[cuda] bench ops: cuBLAS: ") + what + ": status " +
                    std::to_string(static_cast<int>(status)));
  }
};

CublasPeer::CublasPeer(cudaStream_t stream) {
  auto api = std::make_unique<Api>();
  text_ = api->load();
  if (!text_.empty()) return;
  if (const cublasStatus_t status = api->create(&api->handle); status != CUBLAS_STATUS_SUCCESS) {
    api->handle = nullptr;
    text_ = "libcublas cannot be used on this card: status " + std::to_string(static_cast<int>(status));
    return;
  }
  Api::check(api->set_stream(api->handle, stream), "choosing the stream");
  int v = 0;
  Api::check(api->version(api->handle, &v), "asking for its version");
  text_ = "cuBLAS " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
          std::to_string(v % 100);
  api_ = std::move(api);
}

void CublasPeer::set_workspace(std::byte* data) {
  Api::check(api_->set_workspace(api_->handle, data, kWorkspaceBytes), "setting its workspace");
}

void CublasPeer::gemm(std::int64_t n, std::int64_t k, std::int64_t rows, const std::byte* w,
                      const std::byte* x, std::byte* y) {
  // It takes columns as contiguous: w is then [K, N], x [K, T] and y [N, T].
  const float one = 1, zero = 0;
  const int in = static_cast<int>(k), out = static_cast<int>(n);
  Api::check(api_->gemm(api_->handle, CUBLAS_OP_T, CUBLAS_OP_N, out, static_cast<int>(rows), in, &one, w,
                        CUDA_R_16BF, in, x, CUDA_R_16BF, in, &zero, y, CUDA_R_16BF, out,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
             "gemm");
}

#else

struct CublasPeer::Api {};
CublasPeer::CublasPeer(cudaStream_t) : text_("this build had no cublas_v2.h") {}
void CublasPeer::set_workspace(std::byte*) {}
void CublasPeer::gemm(std::int64_t, std::int64_t, std::int64_t, const std::byte*, const std::byte*,
                      std::byte*) {}

#endif

CublasPeer::~CublasPeer() = default;

}  // namespace nibble::cuda
