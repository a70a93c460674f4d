#include "backends/cuda/stream.h"

#include <nvtx3/nvToolsExt.h>

#include <cstring>
#include <vector>

#include "core/numerics/kv_codes.h"

namespace nibble::cuda {
namespace {

struct NvtxRange {
  explicit NvtxRange(const std::string& name) { nvtxRangePushA(name.c_str()); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace

void enqueue(Loaded& l, const BoundProgram& program,
             const std::function<void(std::size_t op)>& after) {
  const NvtxRange whole(program.limits.name);
  count_tokens(program.launch, l.counts, l.workspace.tokens);
  check(cudaGetLastError(), "count_tokens");
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const BoundOp& op = program.ops[i];
    const NvtxRange range(op.op->name);
    op.enqueue(program.launch);
    if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
      fail(status, program.limits.name + ": " + op.op->name + " (" + op_kind(op.op->args) + ")");
    }
    after(i);
  }
}

void capture(Loaded& l, BoundProgram& program) {
  cudaStream_t stream = program.launch.stream;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a program");
  cudaGraph_t graph = nullptr;  // the stream's own until the capture ends
  try {
    enqueue(l, program, [&](std::size_t i) {
      std::size_t nodes = 0;
      cudaStreamCaptureStatus status;
      check(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph), "capturing a program");
      check(cudaGraphGetNodes(graph, nullptr, &nodes), "capturing a program");
      program.ops[i].kernels = nodes;
    });
  } catch (...) {
    graph = nullptr;
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), program.limits.name.c_str());
  std::size_t nodes = 0;
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &nodes);
  cudaGraphExec_t exec = nullptr;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(status, program.limits.name.c_str());
  program.graph.reset(exec);
  program.kernels = nodes;
}

HostState::KvLayer read_pages(const KvLayerView& v, std::span<const std::int32_t> pages,
                              std::int64_t positions) {
  const std::int64_t heads = v.shape.kv_heads, dim = v.shape.head_dim;
  const bool fp8 = v.k_scales != nullptr;
  const std::int64_t size = fp8 ? 1 : dtype_bits(v.operand) / 8, page = heads * kPageTokens * dim;
  std::vector<std::byte> bytes(static_cast<std::size_t>(page * size));
  std::vector<float> scales(static_cast<std::size_t>(fp8 ? heads * kPageTokens : 0));
  HostState::KvLayer out;
  const auto read = [&](const std::byte* from, const float* from_scales, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(heads * positions * dim));
    for (std::int64_t first = 0; first < positions; first += kPageTokens) {
      const std::int64_t number = pages[static_cast<std::size_t>(first / kPageTokens)];
      check(cudaMemcpy(bytes.data(), from + number * page * size, bytes.size(),
                       cudaMemcpyDeviceToHost),
            "reading KV pages");
      if (fp8) {
        check(cudaMemcpy(scales.data(), from_scales + number * heads * kPageTokens, scales.size() * sizeof(float),
                         cudaMemcpyDeviceToHost),
              "reading KV pages");
      }
      const std::int64_t count = std::min(kPageTokens, positions - first);
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < count * dim; ++i) {
          const std::int64_t at = h * kPageTokens * dim + i;
          float value;
          if (fp8) {
            value = num::kv_value(static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(at)]),
                                  scales[static_cast<std::size_t>(at / dim)]);
          } else if (v.operand == DType::bf16) {
            std::uint16_t bits;
            std::memcpy(&bits, bytes.data() + at * 2, 2);
            value = num::bf16_to_float(bits);
          } else {
            std::memcpy(&value, bytes.data() + at * 4, 4);
          }
          to[static_cast<std::size_t>((h * positions + first) * dim + i)] = value;
        }
      }
    }
  };
  read(v.k, v.k_scales, out.k);
  read(v.v, v.v_scales, out.v);
  return out;
}

}  // namespace nibble::cuda
