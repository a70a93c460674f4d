// grouped_run.h: routes tokens, packs experts one behind the other and runs GroupedLinear on the device.
#pragma once

#include <memory>

#include "backends/cuda/ops/experts.h"
#include "tests/cases/grouped_cases.h"
#include "tests/cases/route_cases.h"
#include "tests/cuda/linear_run.h"

namespace nibble::test {

constexpr std::int64_t kMoreRows = 3;  // that a class has beyond the step's

inline std::vector<std::int32_t> no_tokens(std::int64_t rows) { return std::vector<std::int32_t>(static_cast<std::size_t>(rows)); }

// The class's launch for `t` tokens of at most t + kMoreRows.
struct Class {
  Class(std::int64_t t, std::int32_t per_token, std::int64_t more = kMoreRows)
      : step(plain_batch(no_tokens(t)), nullptr, per_token) {
    to.step = step.device();
    to.max_rows = t + more;
    to.multiprocessors = multiprocessors();
    to.experts_per_token = per_token;
  }
  StepOnDevice step;
  cuda::Launch to;
  std::int64_t places() const { return to.max_of(Rows::routed); }
};

template <class T>
DeviceArray<T> room(std::int64_t count) { return DeviceArray<T>(static_cast<std::size_t>(count)); }

struct RoutedOnDevice {
  DeviceMatrix<float> logits, weights;
  DeviceArray<std::int32_t> ids, order, place, starts;

  RoutedOnDevice(const Class& c, const RouteCase& r, std::vector<float> z)
      : logits(c.to.max_rows, r.experts, 5),
        weights(c.to.max_rows, r.per_token, 2),
        ids(room<std::int32_t>(c.places())),
        order(room<std::int32_t>(c.places())),
        place(room<std::int32_t>(c.places())),
        starts(room<std::int32_t>(r.experts + 1)) {
    z.resize(static_cast<std::size_t>(c.to.max_rows * r.experts), std::nanf(""));
    logits.upload(z);
    cuda::expert_route(c.to, {logits.view(), r.normalised, weights.view(), ids.data(), order.data(), place.data(), starts.data()});
    finish_device();
  }
  void expect_whole() const {
    EXPECT_EQ(logits.damage(), "");
    EXPECT_EQ(weights.damage(), "");
    for (const auto* array : {&ids, &order, &place, &starts}) EXPECT_EQ(array->damage(), "");
  }
};

// Images of all experts, one behind the other.
struct ExpertsOnDevice {
  ExpertsOnDevice(const std::vector<std::unique_ptr<OwnedWeight>>& from, cuda::ArchPath path)
      : each(static_cast<std::int64_t>(cuda::image_bytes(from.front()->weight))),
        arena(room<std::byte>(each * static_cast<std::int64_t>(from.size()))) {
    const std::size_t staging = staging_for(from.front()->weight, 2);
    const PinnedMemory host(staging);
    DeviceArray<std::byte> device(staging);
    for (std::size_t e = 0; e < from.size(); ++e) {
      images.push_back(cuda::pack_weight(from[e]->weight, arena.raw() + static_cast<std::int64_t>(e) * each,
                                         {static_cast<std::byte*>(host.data), device.raw(), staging, nullptr}, path));
      finish_device();
      cuda::look_at_packed(images.back());
    }
    EXPECT_EQ(arena.damage(), "");
  }
  // As GroupedLinearArgs takes it.
  cuda::WeightImage first() const {
    cuda::WeightImage image = images.front();
    for (const cuda::WeightImage& other : images) image.plain &= other.plain;
    return image;
  }
  std::int64_t each;
  DeviceArray<std::byte> arena;
  std::vector<cuda::WeightImage> images;
};

// x of a case in device memory, as LinearArgs reads it.
struct InputOnDevice {
  std::unique_ptr<DeviceMatrix<std::uint16_t>> values;
  std::unique_ptr<DeviceMatrix<std::uint8_t>> codes, bytes;
  std::unique_ptr<DeviceMatrix<float>> scales;
  std::unique_ptr<DeviceArray<std::int32_t>> exponents;

  InputOnDevice(const LinearInput& x, Kind kind, std::int64_t k, std::int64_t most, std::int64_t gap,
                cuda::ArchPath path = cuda::ArchPath::sm90) {
    const auto matrix = [&]<class T>(const std::vector<T>& from, std::int64_t cols) {
      std::vector<T> all = from;
      all.resize(static_cast<std::size_t>(most * cols));
      return std::make_unique<DeviceMatrix<T>>(all, most, cols, gap);
    };
    if (kind == Kind::none) values = matrix(x.values, k);
    if (kind == Kind::none && path == cuda::ArchPath::sm70) {  // of no rows too
      std::vector<std::int32_t> all = x.exponents;
      all.resize(static_cast<std::size_t>(most));
      exponents = std::make_unique<DeviceArray<std::int32_t>>(all);
    }
    if (kind != Kind::none) codes = matrix(x.codes, kind == Kind::nvfp4_static ? k / 2 : k);
    if (kind == Kind::nvfp4_static) bytes = matrix(x.byte_scales, k / 16);
    if (kind == Kind::fp8_token) scales = matrix(x.scales, 1);
    if (kind == Kind::fp8_token_group128) scales = matrix(x.scales, (k + 127) / 128);
  }
  void fill(cuda::LinearArgs& a, Rows rows) {
    a.x = values != nullptr ? values->view(rows) : codes->view(rows);
    if (exponents != nullptr) {
      a.x.dtype = DType::f16;
      a.x.exponents = exponents->data();
    }
    if (bytes != nullptr) a.x_scales = bytes->view(rows);
    if (scales != nullptr) a.x_scales = scales->view(rows);
  }
};

template <class Y>
std::vector<float> run_grouped(const cuda::Launch& to, cuda::GroupedLinearArgs a, std::int64_t places,
                               std::int64_t gap = 3) {
  const std::int64_t n = a.linear.weight.rows;
  DeviceMatrix<Y> y(to.max_of(Rows::routed), n, gap);
  a.linear.y = y.view(Rows::routed);
  cuda::grouped_linear(to, a);
  finish_device();
  EXPECT_EQ(y.damage(), "");
  std::vector<float> out;
  const std::vector<Y> raw = y.download();
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (i < static_cast<std::size_t>(places * n)) {
      out.push_back(std::is_same_v<Y, float> ? static_cast<float>(raw[i]) : num::bf16_to_float(static_cast<std::uint16_t>(raw[i])));
    } else {
      unsigned char b[sizeof(Y)];
      std::memcpy(b, &raw[i], sizeof b);
      EXPECT_EQ(b[0], 0xFF) << "a place past the step's count was written";
      if (b[0] != 0xFF) break;
    }
  }
  return out;
}
inline std::vector<float> run_grouped(bool bf16, const cuda::Launch& to, const cuda::GroupedLinearArgs& a,
                                      std::int64_t places, std::int64_t gap = 3) {
  return bf16 ? run_grouped<std::uint16_t>(to, a, places, gap) : run_grouped<float>(to, a, places, gap);
}

}  // namespace nibble::test
