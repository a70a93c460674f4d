#include "backends/cuda/check.h"
#include "backends/cuda/device_info.h"

namespace nibble::cuda {
namespace {

__global__ void probe() {}

std::string version_text(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

}  // namespace

std::string refusal_of(cudaError_t status, int driver, int cards) {
  if (status == cudaErrorInsufficientDriver) {
    if (driver == 0) return "no NVIDIA driver is installed";
    return "the NVIDIA driver supports CUDA " + version_text(driver) + ", this build needs " +
           version_text(CUDART_VERSION) + ": update the driver";
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && cards == 0)) {
    return "the NVIDIA driver finds no card";
  }
  if (status != cudaSuccess) {
    return std::string("the NVIDIA driver cannot be used: ") + cudaGetErrorString(status);
  }
  return {};
}

std::string refusal() {
  int cards = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&cards);
  cudaGetLastError();
  cudaDriverGetVersion(&driver);
  return refusal_of(status, driver, cards);
}

std::string no_code(const std::string& card, int major, int minor, cudaError_t status) {
  return "[cuda] " + card + " has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
         ", for which this build holds no code: " + cudaGetErrorString(status);
}

CardInfo use_card(int index) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "counting cards");
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::no_device, "[cuda] card " + std::to_string(index) + ": expected 0 to " +
                                          std::to_string(count - 1) + ", there are " +
                                          std::to_string(count));
  }
  check(cudaSetDevice(index), "choosing a card");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "reading a card's properties");
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe));
  if (status != cudaSuccess) {
    cudaGetLastError();
    throw Error(ErrorCode::no_device, no_code(properties.name, properties.major, properties.minor, status));
  }
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return {properties.name, properties.major, properties.minor, properties.multiProcessorCount,
          total, free};
}

std::string architecture_of(int major, int minor) {
  const std::string name = "sm_" + std::to_string(major * 10 + minor);
  const bool native = (major == 7 || major == 9 || major == 12) && minor == 0;
  return native ? name : name + ", matrix instructions emulated";
}

}  // namespace nibble::cuda
