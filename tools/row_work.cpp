#include "tools/row_work.h"

#include <algorithm>
#include <cmath>

namespace nibble::tool {
namespace {

// Bytes of weights that a step reads whose body has so many rows.
double weight_bytes(const ModelInfo& info, double rows) {
  double bytes = static_cast<double>(info.body.bytes + info.head.bytes);
  const ModelInfo::Experts& e = info.experts;
  if (e.experts == 0 || e.per_token == 0) return bytes;
  const double one = static_cast<double>(e.active_bytes) / static_cast<double>(e.per_token);
  const auto all = static_cast<double>(e.experts);
  const double touched = all * (1 - std::pow(1 - static_cast<double>(e.per_token) / all, rows));
  return bytes - static_cast<double>(e.active_bytes) + one * touched;
}

double state_bytes(const ModelInfo& info, double sequences) {  // S in float32, read and written
  const ModelInfo::DeltaNet& d = info.delta_net;
  return 2 * 4 * sequences * static_cast<double>(d.layers * d.value_heads * d.key_dim * d.value_dim);
}

}  // namespace

RowWork work_of(const ModelInfo& info, const BenchCase& what, double kv_position_bytes, int step_tokens) {
  RowWork work;
  const auto body = static_cast<double>(info.body.parameters), head = static_cast<double>(info.head.parameters);
  const double pair = 4.0 * static_cast<double>(info.attention.layers * info.attention.heads * info.attention.head_dim);
  const auto tokens = static_cast<double>(what.tokens), batch = static_cast<double>(what.batch);
  if (what.kind == BenchCase::Kind::decode) {
    // The first timed step stands behind the depth with its token, a prompt of one token and the one made of that.
    const double keys = static_cast<double>(what.depth) + (what.depth > 0 ? 1 : 0) + 2 + (tokens - 1) / 2;
    work.tokens = batch;
    work.bytes = weight_bytes(info, batch) + batch * keys * kv_position_bytes + state_bytes(info, batch);
    work.linear_flops = 2 * batch * (body + head);
    work.attention_flops = batch * keys * pair;
    return work;
  }
  work.tokens = tokens;
  for (std::int64_t from = 0; from < what.tokens; from += step_tokens) {
    const auto until = static_cast<double>(std::min<std::int64_t>(from + step_tokens, what.tokens));
    work.bytes += weight_bytes(info, until - static_cast<double>(from)) + until * kv_position_bytes + state_bytes(info, 1);
  }
  work.linear_flops = 2 * (body * tokens + head);
  work.attention_flops = pair * tokens * tokens / 2;
  return work;
}

bool runs_fp8(const ModelInfo& info) { return info.activations == "a8"; }

RowRoof roof_of(const ModelInfo& info, const BenchCase& what, const RowWork& work, const DeviceRoofs& rates) {
  const bool decode = what.kind == BenchCase::Kind::decode, fp8 = runs_fp8(info);
  if (rates.copy_bytes_per_second <= 0) return {0, "copies were not measured: " + rates.copy};
  const double moved = work.bytes / rates.copy_bytes_per_second;
  const double linear_rate = fp8 ? rates.fp8_flops_per_second : rates.matrix_flops_per_second;
  std::string why;
  if (info.profile == "sm120" && info.activations == "declared") {
    why = "linear layers may run on the FP4 unit, whose rate is not measured";
  } else if (rates.matrix_flops_per_second <= 0) {
    why = "the rate of bf16 products was not measured: " + rates.matrix;
  } else if (linear_rate <= 0) {
    why = "the rate of FP8 products was not measured: " + rates.fp8;
  }
  if (!why.empty()) {
    if (!decode) return {0, why};
    return {work.tokens / moved, "bytes / copies"};
  }
  const double computed = work.linear_flops / linear_rate + work.attention_flops / rates.matrix_flops_per_second;
  if (moved >= computed) return {work.tokens / moved, "bytes / copies"};
  return {work.tokens / computed, fp8 ? "operations / fp8 and bf16" : "operations / bf16"};
}

DeviceRoofs median_roofs(const std::vector<DeviceRoofs>& samples) {
  DeviceRoofs roofs = samples.at(0);
  const auto take = [&](double DeviceRoofs::*rate, std::string DeviceRoofs::*text) {
    std::vector<double> rates;
    for (const DeviceRoofs& s : samples) {
      if (s.*rate <= 0) continue;
      rates.push_back(s.*rate);
      roofs.*text = s.*text;
    }
    if (rates.empty()) return;
    std::sort(rates.begin(), rates.end());
    roofs.*rate = (rates[rates.size() / 2] + rates[(rates.size() - 1) / 2]) / 2;
  };
  take(&DeviceRoofs::copy_bytes_per_second, &DeviceRoofs::copy);
  take(&DeviceRoofs::matrix_flops_per_second, &DeviceRoofs::matrix);
  take(&DeviceRoofs::fp8_flops_per_second, &DeviceRoofs::fp8);
  return roofs;
}

}  // namespace nibble::tool
