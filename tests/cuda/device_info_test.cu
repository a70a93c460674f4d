// device_info_test.cu: what is said where no card can be used. Needs none.
#include <gtest/gtest.h>

#include "backends/cuda/device_info.h"

namespace nibble::cuda {
namespace {

TEST(DeviceRefusals, NameWhatIsMissing) {
  const std::string built = std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
  EXPECT_EQ(refusal_of(cudaErrorInsufficientDriver, 0, 0), "no NVIDIA driver is installed");
  EXPECT_EQ(refusal_of(cudaErrorInsufficientDriver, 11040, 0),
            "the NVIDIA driver supports CUDA 11.4, this build needs " + built + ": update the driver");
  EXPECT_EQ(refusal_of(cudaErrorNoDevice, 12020, 0), "the NVIDIA driver finds no card");
  EXPECT_EQ(refusal_of(cudaSuccess, 12020, 0), "the NVIDIA driver finds no card");
  EXPECT_EQ(refusal_of(cudaErrorSystemNotReady, 12020, 0),
            std::string("the NVIDIA driver cannot be used: ") + cudaGetErrorString(cudaErrorSystemNotReady));
  EXPECT_EQ(refusal_of(cudaSuccess, 12020, 1), "");
}

TEST(DeviceRefusals, ACardWithoutCodeIsNamed) {
  EXPECT_EQ(no_code("Tesla P100", 6, 0, cudaErrorNoKernelImageForDevice),
            std::string("[cuda] Tesla P100 has compute capability 6.0, for which this build holds no code: ") +
                cudaGetErrorString(cudaErrorNoKernelImageForDevice));
}

}  // namespace
}  // namespace nibble::cuda
