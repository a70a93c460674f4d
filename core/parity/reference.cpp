// reference.cpp: buffers, and the ops that see one row at a time.
#include "core/parity/reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "core/numerics/codecs.h"
#include "core/parity/weight_rows.h"
#include "nibble/error.h"

namespace nibble {
namespace {

using Kind = ActivationFormat::Kind;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The op's first output; not valid() where it is no buffer.
Tensor first_output(const OpArgs& args) {
  return std::visit(
      [](const auto& a) -> Tensor {
        if constexpr (requires { a.y; }) {
          return a.y;
        } else if constexpr (requires { a.codes; }) {
          return a.codes;
        } else if constexpr (requires { a.g; }) {
          return a.g;
        } else if constexpr (requires { a.q_out; }) {
          return a.q_out;
        } else if constexpr (requires { a.weights; a.logits; }) {
          return a.weights;
        } else {
          return {};
        }
      },
      args);
}

// fn(i) for i below n; each i writes its own results only. On all the machine's threads where the
// `operations` of all n are worth starting them.
template <class Fn>
void in_parallel(std::int64_t n, std::int64_t operations, const Fn& fn) {
  constexpr std::int64_t kPiece = 16, kWorthThreads = 1 << 23;
  const auto most = operations < kWorthThreads
                        ? 1
                        : std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  const std::int64_t threads = std::min(most, (n + kPiece - 1) / kPiece);
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i; (i = next.fetch_add(kPiece)) < n;) {
      for (std::int64_t j = i; j < std::min(n, i + kPiece); ++j) fn(j);
    }
  };
  std::vector<std::jthread> others;
  for (std::int64_t t = 1; t < threads; ++t) others.emplace_back(work);
  work();
}

float largest(const double* x, std::int64_t n) {
  double most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::abs(x[i]) > most) most = std::abs(x[i]);  // a NaN is never larger
  }
  return static_cast<float>(most);
}

}  // namespace

Reference::Reference(const ModelSpec& spec) : spec_(spec) {
  for (const DeltaShape& d : spec.state.delta) {
    State::Delta state;
    state.s.resize(at(std::int64_t{d.value_heads} * d.key_dim * d.value_dim));
    state.conv.resize(at(d.channels() * (d.conv_kernel - 1)));
    state_.delta.push_back(std::move(state));
  }
  state_.kv.resize(spec.state.attention.size());
}

void Reference::begin(const Program& program, const Batch& batch) {
  program_ = &program;
  batch_ = &batch;
  buffers_.assign(program.buffers.size(), {});
}

std::int64_t Reference::rows_of(const Tensor& t) const {
  switch (t.rows) {
    case Rows::tokens:
      return batch_->rows();
    case Rows::outputs:
      return static_cast<std::int64_t>(batch_->output_rows.size());
    case Rows::routed:
      return batch_->rows() * program_->experts_per_token;
    case Rows::one:
      return 1;
  }
  return 0;
}

Reference::View Reference::view(const Tensor& t) {
  const Buffer& buffer = program_->buffers[at(t.buffer)];
  std::vector<double>& values = buffers_[at(t.buffer)];
  const std::int64_t rows = rows_of(t);
  if (values.empty()) values.resize(at(rows * buffer.cols));
  return {values.data() + t.offset, rows, t.cols, t.stride};
}

const std::vector<float>& Reference::constant(ConstantId id) const { return spec_.constants[at(id)].data; }
const Weight& Reference::weight(WeightId id) const { return spec_.weights[at(id)]; }

Reference::Result Reference::evaluate(const Op& op) {
  Result out;
  if (const Tensor y = first_output(op.args); y.valid()) {
    const View v = view(y);
    out.values.resize(at(v.rows * v.cols));
  }
  std::visit(
      [&]<class Args>(const Args& a) {
        if constexpr (requires { a.pack; } || std::is_same_v<Args, LinearSwiGlu> || std::is_same_v<Args, DeltaNet> ||
                      std::is_same_v<Args, AddRmsNorm> || std::is_same_v<Args, GatedAttention>) {
          throw Error(ErrorCode::internal,
                      "[parity] " + op.name + ": expected ops one by one, found " + op_kind(op.args));
        } else {
          eval(a, out);
        }
      },
      op.args);
  return out;
}

void Reference::show(const Op& op, std::span<const float> data) {
  const Tensor y = first_output(op.args);
  if (!y.valid()) return;
  const View v = view(y);
  for (std::int64_t r = 0; r < v.rows; ++r) {
    std::copy_n(data.begin() + r * v.cols, v.cols, v.row(r));
  }
}

void Reference::eval(const Embed& a, Result& out) {
  for (std::int64_t t = 0; t < batch_->rows(); ++t) {
    weight_row(weight(a.table), batch_->tokens[at(t)], out.values.data() + t * a.y.cols);
  }
}

void Reference::eval(const RmsNorm& a, Result& out) {
  const View x = view(a.x);
  const std::vector<float>& w = constant(a.weight);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    double sum = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) sum += x.row(t)[c] * x.row(t)[c];
    const double r = 1 / std::sqrt(sum / static_cast<double>(x.cols) + a.eps);
    for (std::int64_t c = 0; c < x.cols; ++c) out.values[at(t * x.cols + c)] = x.row(t)[c] * r * w[at(c)];
  }
}

// Codes are fixed to the bit, so this one is in float32.
void Reference::eval(const Quantize& a, Result& out) {
  out.exact = true;
  const View x = view(a.x);
  const std::int64_t group = a.format.kind == Kind::nvfp4_static         ? 16
                             : a.format.kind == Kind::fp8_token_group128 ? 128
                                                                         : x.cols;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    double* const codes = out.values.data() + t * a.codes.cols;
    for (std::int64_t begin = 0; begin < x.cols; begin += group) {
      const double* in = x.row(t) + begin;
      const std::int64_t n = std::min(group, x.cols - begin);
      const auto value = [&](std::int64_t i) { return static_cast<float>(in[i]); };
      if (a.format.kind == Kind::nvfp4_static) {
        const std::uint8_t s =
            num::float_to_e4m3(num::div(num::div(largest(in, n), 6.0f), a.format.scale));
        const float unit = num::mul(num::e4m3_to_float(s), a.format.scale);
        view(a.scales).row(t)[begin / group] = s;
        for (std::int64_t i = 0; i < n; ++i) {
          const std::uint8_t code = s == 0 ? std::uint8_t{0} : num::float_to_e2m1(num::div(value(i), unit));
          codes[(begin + i) / 2] += i % 2 == 0 ? code : code * 16;
        }
        continue;
      }
      float s = a.format.scale;
      if (a.format.kind != Kind::fp8_tensor_static) {
        const float most = largest(in, n);
        s = most == 0.0f ? 1.0f : num::div(most, 448.0f);
        view(a.scales).row(t)[begin / group] = s;
      }
      for (std::int64_t i = 0; i < n; ++i) codes[begin + i] = num::float_to_e4m3(num::div(value(i), s));
    }
  }
}

std::vector<double> Reference::activations(const Tensor& in, const Tensor& x_scales, const ActivationFormat& format,
                                           std::int64_t cols) {
  const View x = view(in);
  std::vector<double> out(at(x.rows * cols));
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t k = 0; k < cols; ++k) {
      double value = 0;
      const auto code = [&](std::int64_t i) { return static_cast<std::uint8_t>(x.row(t)[i]); };
      switch (format.kind) {
        case Kind::none:
          value = x.row(t)[k];
          break;
        case Kind::nvfp4_static:
          value = static_cast<double>(num::e2m1_to_float(k % 2 == 0 ? code(k / 2) & 15u : code(k / 2) >> 4)) *
                  num::e4m3_to_float(static_cast<std::uint8_t>(view(x_scales).row(t)[k / 16])) *
                  format.scale;
          break;
        case Kind::fp8_tensor_static:
          value = static_cast<double>(num::e4m3_to_float(code(k))) * format.scale;
          break;
        case Kind::fp8_token:
          value = num::e4m3_to_float(code(k)) * view(x_scales).row(t)[0];
          break;
        case Kind::fp8_token_group128:
          value = num::e4m3_to_float(code(k)) * view(x_scales).row(t)[k / 128];
          break;
      }
      out[at(t * cols + k)] = value;
    }
  }
  return out;
}

constexpr std::int64_t kFewOutputs = 8;

void Reference::eval(const Linear& a, Result& out) {
  const Weight& w = weight(a.weight);
  const std::vector<double> x = activations(a.x, a.x_scales, a.x_format, w.cols);
  const auto rows = static_cast<std::int64_t>(x.size()) / w.cols;
  const bool few = w.rows < kFewOutputs;
  if (few) out.sizes.resize(at(rows * w.rows));
  in_parallel(w.rows, w.rows * w.cols * (rows + 4), [&](std::int64_t n) {
    std::vector<double> row(at(w.cols));
    weight_row(w, n, row.data());
    for (std::int64_t t = 0; t < rows; ++t) {
      const double* in = x.data() + t * w.cols;
      double sum = 0, squares = 0;
      for (std::int64_t k = 0; k < w.cols; ++k) {
        const double term = in[k] * row[at(k)];
        sum += term;
        squares += term * term;
      }
      out.values[at(t * w.rows + n)] = sum;
      if (few) out.sizes[at(t * w.rows + n)] = std::sqrt(squares);
    }
  });
}

void Reference::eval(const DeltaGates& a, Result& out) {
  const View in = view(a.a), b = view(a.b), beta = view(a.beta);
  for (std::int64_t t = 0; t < in.rows; ++t) {
    for (std::int64_t h = 0; h < in.cols; ++h) {
      const double x = in.row(t)[h] + constant(a.dt_bias)[at(h)];
      out.values[at(t * in.cols + h)] =
          constant(a.neg_exp_a)[at(h)] * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
      beta.row(t)[h] = sigmoid(b.row(t)[h]);
    }
  }
}

void Reference::eval(const GatedRmsNorm& a, Result& out) {
  const View x = view(a.x), z = view(a.z);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t begin = 0; begin < x.cols; begin += a.group) {
      double sum = 0;
      for (std::int64_t c = begin; c < begin + a.group; ++c) sum += x.row(t)[c] * x.row(t)[c];
      const double r = 1 / std::sqrt(sum / a.group + a.eps);
      for (std::int64_t c = begin; c < begin + a.group; ++c) {
        const double gate = z.row(t)[c];
        out.values[at(t * x.cols + c)] =
            x.row(t)[c] * r * constant(a.weight)[at(c - begin)] * gate * sigmoid(gate);
      }
    }
  }
}

void Reference::eval(const SigmoidGate& a, Result& out) {
  const View x = view(a.x), gate = view(a.gate);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const std::int64_t h = c / a.head_dim, d = c % a.head_dim;
      out.values[at(t * x.cols + c)] = x.row(t)[c] * sigmoid(gate.row(t)[h * a.gate_head_stride + d]);
    }
  }
}

void Reference::eval(const SwiGlu& a, Result& out) {
  const View gate = view(a.gate), up = view(a.up);
  for (std::int64_t t = 0; t < gate.rows; ++t) {
    for (std::int64_t c = 0; c < gate.cols; ++c) {
      const double g = gate.row(t)[c];
      out.values[at(t * gate.cols + c)] = g * sigmoid(g) * up.row(t)[c];
    }
  }
}

void Reference::eval(const Add& a, Result& out) {
  const View x = view(a.a), y = view(a.b);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t c = 0; c < x.cols; ++c) out.values[at(t * x.cols + c)] = x.row(t)[c] + y.row(t)[c];
  }
}

void Reference::eval(const GatherRows& a, Result& out) {
  const View x = view(a.x);
  for (std::size_t o = 0; o < batch_->output_rows.size(); ++o) {
    std::copy_n(x.row(batch_->output_rows[o]), x.cols,
                out.values.begin() + static_cast<std::int64_t>(o) * x.cols);
  }
}

// Greedy: what Probe asks for.
void Reference::eval(const Sample& a, Result& out) {
  out.exact = true;
  const View z = view(a.logits);
  for (std::int64_t t = 0; t < z.rows; ++t) {
    std::int64_t best = 0;
    double most = -INFINITY;
    for (std::int64_t i = 0; i < z.cols; ++i) {
      if (z.row(t)[i] > most) {
        most = z.row(t)[i];
        best = i;
      }
    }
    out.values.push_back(static_cast<double>(best));
  }
}

void Reference::eval(const TokenLogprob& a, Result& out) {
  const View z = view(a.logits);
  for (std::int64_t t = 0; t < z.rows; ++t) {
    const double* row = z.row(t);
    const double most = *std::max_element(row, row + z.cols);
    double sum = 0;
    for (std::int64_t i = 0; i < z.cols; ++i) sum += std::exp(row[i] - most);
    out.values.push_back(row[batch_->targets[at(t)]] - most - std::log(sum));
  }
}

}  // namespace nibble
