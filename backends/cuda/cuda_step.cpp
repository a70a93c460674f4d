// A step on the card: what is sent, launched, read back and counted.
#include <cmath>
#include <cstring>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/loaded.h"
#include "backends/cuda/stream.h"
#include "backends/cuda/trace.h"
#include "core/numerics/codecs.h"

namespace nibble::cuda {
namespace {

float element(const std::byte* row, DType type, std::int64_t i) {
  if (type == DType::u8) return static_cast<float>(std::to_integer<int>(row[i]));
  if (type == DType::bf16 || type == DType::f16) {
    std::uint16_t bits;
    std::memcpy(&bits, row + 2 * i, sizeof bits);
    return type == DType::bf16 ? num::bf16_to_float(bits) : num::f16_to_float(bits);
  }
  float v;
  std::memcpy(&v, row + 4 * i, sizeof v);
  return v;
}

// An observer gets rows without gaps, as float32 (codes as their byte).
void show(const Observer& observer, const BoundOp& op, const Batch& batch, std::int32_t experts_per_token) {
  std::int64_t first = 0;
  std::int64_t rows = op.output.rows == Rows::tokens   ? batch.rows()
                      : op.output.rows == Rows::routed ? batch.rows() * experts_per_token
                                                       : static_cast<std::int64_t>(batch.output_rows.size());
  if (op.section != nullptr) {
    rows = 0;
    for (const Range& r : batch.ranges) {
      if (r.section < *op.section) first += r.rows;
      if (r.section == *op.section) rows += r.rows;
    }
  }
  if (rows == 0) return;
  const View& v = op.output;
  const std::int64_t size = dtype_bits(v.dtype) / 8;
  const std::size_t width = static_cast<std::size_t>(v.cols * size);
  std::vector<std::byte> bytes(width * static_cast<std::size_t>(rows));
  check(cudaMemcpy2D(bytes.data(), width, v.data + first * v.stride * size,
                     static_cast<std::size_t>(v.stride * size), width,
                     static_cast<std::size_t>(rows), cudaMemcpyDeviceToHost),
        "reading an op's output");
  std::vector<float> values(static_cast<std::size_t>(rows * v.cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = element(bytes.data(), v.dtype, static_cast<std::int64_t>(i));
  }
  if (v.exponents != nullptr) {
    std::vector<std::int32_t> e(static_cast<std::size_t>(rows));
    check(cudaMemcpy(e.data(), v.exponents + first, e.size() * sizeof(std::int32_t),
                     cudaMemcpyDeviceToHost),
          "reading an op's output");
    const auto cols = static_cast<std::size_t>(v.cols);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = num::mul(values[i], std::ldexp(1.0f, e[i / cols]));
    }
  }
  observer(*op.op, rows, v.cols, values);
}

template <class T>
void show_list(const Observer& observer, const Op& op, const std::vector<T>& list) {
  std::vector<float> values;
  for (const T v : list) values.push_back(static_cast<float>(v));
  observer(op, static_cast<std::int64_t>(values.size()), 1, values);
}

// What is launched while it lives belongs to one run of a program.
class TracedRun {
 public:
  TracedRun(Tracer* tracer, std::vector<std::size_t>& runs, std::size_t program) : tracer_(tracer) {
    if (tracer_ == nullptr) return;
    runs.push_back(program);
    tracer_->begin_run(runs.size());
  }
  ~TracedRun() {
    if (tracer_ != nullptr) tracer_->end_run();
  }
  TracedRun(const TracedRun&) = delete;
  TracedRun& operator=(const TracedRun&) = delete;

 private:
  Tracer* tracer_;
};

// After the step has ended.
void read_answer(const CardStep& step, StepOutput& out) {
  const ProgramLimits& limits = step.program->limits;
  out.tokens.resize(limits.samples ? step.outputs : 0);
  out.logprobs.resize(limits.scores ? step.outputs : 0);
  if (limits.samples) std::memcpy(out.tokens.data(), step.answer, step.read);
  for (std::size_t i = 0; i < out.logprobs.size(); ++i) {
    LogprobParts p;
    std::memcpy(&p, step.answer + i * sizeof p, sizeof p);
    out.logprobs[i] = static_cast<double>(p.target) - static_cast<double>(p.max) -
                      std::log(static_cast<double>(p.sum));
  }
}

}  // namespace

void CudaBackend::start(std::size_t index, const Batch& batch, const Observer& observer) {
  Loaded& l = loaded("start");
  if (index >= l.bound.size()) {
    throw Error(ErrorCode::internal, "[cuda] start: expected a program below " +
                                         std::to_string(l.bound.size()) + ", found " +
                                         std::to_string(index));
  }
  // The place's step before has ended, so what it sent and read is no longer on its way.
  CardStep& step = l.steps.next("cuda");
  const std::uint64_t arenas = arenas_made_;
  BoundProgram& program = l.bound[index];
  cudaStream_t stream = stream_->get();
  l.checker(program.limits, batch, l.cursors, !l.delta.empty(), l.sampled);

  const TracedRun traced(tracer_.get(), traced_, index);
  check(cudaEventRecord(step.begun.get(), stream), "beginning a step");
  step.program = &program;
  step.outputs = batch.output_rows.size();
  step.sent = l.step.write(batch, l.cursors, program.launch.experts_per_token, step.batch);
  check(cudaMemcpyAsync(l.step.device(), step.batch, step.sent, cudaMemcpyHostToDevice, stream),
        "sending the batch");
  if (program.graph && graphs_ && !observer) {
    check(cudaGraphLaunch(program.graph.get(), stream), program.limits.name.c_str());
  } else {
    enqueue(l, program, [&](std::size_t i) {
      const BoundOp& op = program.ops[i];
      if (!observer || op.output.data == nullptr) return;
      check(cudaStreamSynchronize(stream), op.op->name.c_str());
      show(observer, op, batch, program.launch.experts_per_token);
    });
  }
  const std::size_t size = program.limits.samples ? sizeof(std::int32_t) : sizeof(LogprobParts);
  const void* from = program.limits.samples ? static_cast<const void*>(l.workspace.tokens)
                                            : static_cast<const void*>(l.workspace.logprobs);
  step.read = program.limits.samples || program.limits.scores ? step.outputs * size : 0;
  if (step.read > 0) {
    check(cudaMemcpyAsync(step.answer, from, step.read, cudaMemcpyDeviceToHost, stream),
          "reading tokens");
  }
  check(cudaEventRecord(step.ended.get(), stream), "ending a step");
  if (observer) {
    wait(program.limits.name.c_str());
    StepOutput out;
    read_answer(step, out);
    const Op& last = *program.ops.back().op;
    if (program.limits.samples) show_list(observer, last, out.tokens);
    if (program.limits.scores) show_list(observer, last, out.logprobs);
  }
  l.cursors.end_step(batch.ranges);
  l.sampled = program.limits.samples ? static_cast<std::int64_t>(step.outputs) : 0;

  step.rows = batch.rows();
  step.prefill = 0;
  for (const Range& r : batch.ranges) step.prefill += r.section == Section::prefill ? r.rows : 0;
  step.allocations = arenas_made_ - arenas;
  l.steps.push();
}

void CudaBackend::finish(StepOutput& out) {
  const CardStep& step = loaded("finish").steps.pop("cuda");
  // Not the stream: the step behind this one may be on it already.
  check(cudaEventSynchronize(step.ended.get()), step.program->limits.name.c_str());
  read_answer(step, out);
  // Both events lie on the stream, so a step begins where the one before ends at the earliest.
  float ms = 0;
  check(cudaEventElapsedTime(&ms, step.begun.get(), step.ended.get()), "timing a step");
  const double seconds = static_cast<double>(ms) / 1000;
  const double share = static_cast<double>(step.prefill) / static_cast<double>(step.rows);
  ++stats_.steps;
  stats_.last_launches = step.program->kernels;
  stats_.launches += step.program->kernels;
  stats_.allocations += step.allocations;
  stats_.host_to_device_bytes += step.sent;
  stats_.device_to_host_bytes += step.read;
  stats_.prefill_tokens += static_cast<std::uint64_t>(step.prefill);
  stats_.decode_tokens += static_cast<std::uint64_t>(step.rows - step.prefill);
  stats_.prefill_seconds += seconds * share;
  stats_.decode_seconds += seconds * (1 - share);
}

}  // namespace nibble::cuda
