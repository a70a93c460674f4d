// linear_grouped.cu: which kernel of GroupedLinear serves. One launch serves all experts (linear_group.cuh, or the plain
// kernels' linear_groups.cuh); products are Linear's, so that a row has the bits of Linear with its expert's weight alone.
#include <string>

#include "backends/cuda/ops/linear_group_tiles.cuh"
#include "core/ops/expert_limits.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr std::int64_t kFewRows = 8, kMostSlots = 65535;

void launch_sm90(const Launch& to, const GroupedParams& p) {
  if (to.max_rows <= kFewRows) {
    launch_few(to, p);
  } else {
    launch_tile(to, p);
  }
}

// Why a kernel does not serve; null: it does.
const char* refuse_tuned(const Launch&, const GroupedLinearArgs&) { return "it has no form for experts yet"; }
// `tokens`: of a tile where there are many rows.
const char* refuse_all(const Launch& to, const GroupedLinearArgs& a, int tokens) {
  if (a.experts < 1 || a.experts > kMostExperts) return "there are no experts, or more than 1024";
  if (to.experts_per_token < 1) return "the program has no experts";
  if (group_slots(to, a.experts, tokens) > kMostSlots) return "there are more than 65535 tiles of rows";
  return nullptr;
}
bool fp4(const LinearArgs& a) {
  return a.path == ArchPath::sm120 && a.weight.format == WeightFormat::nvfp4 &&
         a.format.kind == ActivationKind::nvfp4_static;
}
const char* refuse_sm120(const Launch& to, const GroupedLinearArgs& a) {
  if (!fp4(a.linear)) return "the path is not sm120 with nvfp4 on both sides";
  if (a.linear.weight.order != CodeOrder::k64) return "codes were not packed for the FP4 unit";
  return refuse_all(to, a, 8);
}
const char* refuse_sm70(const Launch& to, const GroupedLinearArgs& a) {
  if (a.linear.path != ArchPath::sm70) return "the path is not sm70";
  if (a.linear.weight.values != DType::f16) return "the weight was not packed for f16 operands";
  if (a.linear.format.kind == ActivationKind::none && a.linear.x.exponents == nullptr) return "x has no exponents";
  return refuse_all(to, a, 8);
}
const char* refuse_sm90(const Launch& to, const GroupedLinearArgs& a) {
  if (a.linear.path == ArchPath::sm70) return "the path is sm70";
  if (fp4(a.linear)) return "the path multiplies nvfp4 by nvfp4 on the FP4 unit";
  if (a.linear.weight.values != DType::bf16) return "the weight was not packed for bf16 operands";
  return refuse_all(to, a, 64);
}

struct GroupedKernel {
  const char *name, *emulated;
  const char* (*refusal)(const Launch&, const GroupedLinearArgs&);
  bool (*native)();
  void (*launch)(const Launch&, const GroupedParams&);
};
// Best first.
constexpr GroupedKernel kKernels[] = {
    {"mma.m16n8k64 nvfp4, tiled", "mma.m16n8k64 nvfp4, tiled, emulated", refuse_tuned, has_fp4, nullptr},
    {"wgmma.m64k16, grouped", "wgmma.m64k16, grouped", refuse_group, has_wgmma, launch_group},
    {"mma.m8n8k4", "mma.m8n8k4, emulated", refuse_tuned, has_m8n8k4, nullptr},
    {"mma.m16n8k64 nvfp4, grouped", "mma.m16n8k64 nvfp4, grouped, emulated", refuse_sm120, has_fp4, launch_sm120},
    {"mma.m8n8k4 plain, grouped", "mma.m8n8k4 plain, grouped, emulated", refuse_sm70, has_m8n8k4, launch_sm70},
    {"mma.m16n8k16, grouped", "mma.m16n8k16, grouped, emulated", refuse_sm90, has_m16n8k16, launch_sm90},
};

const GroupedKernel& kernel_for(const Launch& to, const GroupedLinearArgs& a) {
  std::string refusals;
  for (const GroupedKernel& k : kKernels) {
    const char* why = k.refusal(to, a);
    if (why == nullptr) return k;
    refusals += std::string(refusals.empty() ? "" : "; ") + k.name + ": " + why;
  }
  throw Error(ErrorCode::internal, "[cuda] grouped linear: no kernel serves: " + refusals);
}

GroupedParams grouped_params(const Launch& to, const GroupedLinearArgs& a) {
  GroupedParams p;
  static_cast<LinearParams&>(p) = linear_params(to, a.linear);
  p.order = a.order;
  p.starts = a.starts;
  p.experts = a.experts;
  p.per_token = a.linear.x.rows == Rows::tokens ? to.experts_per_token : 0;
  p.expert_bytes = a.expert_bytes;
  p.by_place = false;
  p.expert = 0;
  return p;
}

}  // namespace

void grouped_linear(const Launch& to, const GroupedLinearArgs& a) {
  const GroupedKernel& kernel = kernel_for(to, a);
  if (to.max_of(Rows::routed) > 0) kernel.launch(to, grouped_params(to, a));
}

const char* grouped_linear_kernel(const Launch& to, const GroupedLinearArgs& a) {
  const GroupedKernel& kernel = kernel_for(to, a);
  return kernel.native() ? kernel.name : kernel.emulated;
}

std::vector<std::pair<std::string, std::string>> grouped_linear_choices(const Launch& to, const GroupedLinearArgs& a) {
  std::vector<std::pair<std::string, std::string>> all;
  bool served = false;
  for (const GroupedKernel& k : kKernels) {
    const char* const why = k.refusal(to, a);
    std::string verdict = why != nullptr ? why : served ? "one before it serves" : "served";
    if (why == nullptr && !served && k.launch == launch_group) verdict += ", " + group_choice(to, grouped_params(to, a));
    served = served || why == nullptr;
    all.emplace_back(k.native() ? k.name : k.emulated, std::move(verdict));
  }
  return all;
}

int grouped_linear_tile_count() { return kGroupedTileCount; }

std::vector<LinearTile> grouped_linear_tiles(const Launch& to, const GroupedLinearArgs& a) {
  GroupedLinearArgs first = a;
  first.linear.tile = 0;  // whatever is not the tile's matter
  return refuse_group(to, first) == nullptr ? grouped_tiles(grouped_params(to, a)) : std::vector<LinearTile>{};
}

}  // namespace nibble::cuda
