// Turns the ops of a program into launches on addresses.
#include <algorithm>
#include <variant>

#include "backends/cuda/binder_views.h"
#include "backends/cuda/expert_images.h"
#include "backends/cuda/ops/delta_net.h"
#include "backends/cuda/ops/eights.h"
#include "backends/cuda/ops/experts.h"
#include "backends/cuda/ops/pack.h"
#include "backends/cuda/ops/rowwise.h"
#include "backends/cuda/ops/sequence.h"
#include "core/program/planner.h"

namespace nibble::cuda {
namespace {

class Binder : private BinderViews {
 public:
  using Call = std::function<void(const Launch&)>;

  Binder(Loaded& loaded, const Program& program, BoundProgram& bound)
      : BinderViews(loaded, program), bound_(bound) {}

  BoundOp bind(const Op& op) {
    op_ = &op;
    output_ = {};
    section_ = nullptr;
    wide_.reset(l_.workspace.wide, l_.workspace.wide_bytes, program_);
    BoundOp bound;
    bound.op = &op;
    serves_ = {op_kind(op.args), reads_f16(op) ? "generic, on float32 copies of f16 rows" : "generic"};
    Call own =
        std::visit([this](const auto& args) { return call(args); }, op.args);  // sets the members
    bound.enqueue = wide_.around(std::move(own), section_);
    bound.output = wide_.stored(output_);
    bound.section = section_;
    bound.serves = std::move(serves_);
    return bound;
  }

 private:
  // GatherRows copies rows of either type as they are.
  static bool reads_f16(const Op& op) {
    bool f16 = false;
    OpArgs all = op.args;
    const auto look = [&](const Tensor& t) { f16 = f16 || (t.valid() && t.dtype == DType::f16); };
    visit_tensors(all, look, look);
    return f16 && !std::holds_alternative<GatherRows>(op.args);
  }
  // Of an op that has kernels in eights: whether they serve, else why not.
  void by_eights(const char* refusal) {
    serves_.second = refusal == nullptr ? "eights" : serves_.second + ", as " + refusal;
  }
  Call call(const Embed& a) {
    const EmbedArgs args{weight(a.table), f32("y", a.y)};
    expect_equal("y columns", args.table.cols, a.y.cols);
    expect(args.table.rows >= l_.sizes.vocab, "table", "a row for each token of the vocabulary");
    output_ = args.y;
    return [args](const Launch& to) { embed(to, args); };
  }
  Call call(const RmsNorm& a) {
    const RmsNormArgs args{f32("x", a.x), constant("weight", a.weight, a.x.cols), a.eps,
                           result_like("y", a.y, a.x, a.x.cols)};
    output_ = args.y;
    by_eights(rms_norm_eights(bound_.launch, args, nullptr, Serve::ask));
    return [args](const Launch& to) { rms_norm(to, args); };
  }
  Call call(const Quantize& a) {
    QuantizeArgs args{operand("x", a.x), a.format, typed_view("codes", a.codes, DType::u8), {}};
    const bool fp4 = a.format.kind == ActivationFormat::Kind::nvfp4_static;
    expect(a.format.kind != ActivationFormat::Kind::none, "format", "a quantised one");
    expect(!fp4 || a.x.cols % 16 == 0, "x", "columns in multiples of 16");
    expect_equal("codes columns", fp4 ? a.x.cols / 2 : a.x.cols, a.codes.cols);
    args.scales = scales("scales", a.scales, a.format, a.x.cols);
    output_ = args.codes;
    by_eights(quantize_eights(bound_.launch, args, Serve::ask));
    return [args](const Launch& to) { quantize(to, args); };
  }
  Call call(const Linear& a) {
    expect(a.y.rows == a.x.rows, "y", "as many rows as x");
    const LinearArgs args = linear_args(a.x, a.x_scales, a.x_format, a.weight, a.y);
    output_ = args.y;
    serves_ = {linear_name("linear ", args.weight, a.x_format), linear_kernel(bound_.launch, args)};
    return [args](const Launch& to) { linear(to, args); };
  }
  Call call(const LinearSwiGlu& a) {
    expect(a.y.rows == a.x.rows, "y", "as many rows as x");
    const WeightImage& w = gate_up(a.gate, a.up);
    const LinearArgs args = linear_args(a.x, a.x_scales, a.x_format, w, a.y, w.rows / 2);
    output_ = args.y;
    serves_ = {linear_name("linear swiglu ", w, a.x_format), linear_kernel(bound_.launch, args)};
    return [args](const Launch& to) { linear(to, args); };
  }
  DeltaConvArgs conv_args(const DeltaConv& a) {
    const DeltaLayerView& state = delta_layer(a.layer, a.shape);
    const std::int64_t c = a.shape.channels();
    return {operand("x", a.x, c), constant("weight", a.weight, c * a.shape.conv_kernel), state, a.section, result("y", a.y, c)};
  }
  Call call(const DeltaConv& a) {
    const DeltaConvArgs args = conv_args(a);
    output_ = args.y;
    section_ = &a.section;
    return [args](const Launch& to) { delta_conv(to, args); };
  }
  DeltaGatesArgs gates_args(const DeltaGates& a) {
    const std::int64_t heads = a.a.cols;
    return {f32("a", a.a),
            f32("b", a.b, heads),
            constant("neg_exp_a", a.neg_exp_a, heads),
            constant("dt_bias", a.dt_bias, heads),
            f32("g", a.g, heads),
            f32("beta", a.beta, heads)};
  }
  Call call(const DeltaGates& a) {
    const DeltaGatesArgs args = gates_args(a);
    output_ = args.g;
    return [args](const Launch& to) { delta_gates(to, args); };
  }
  DeltaRuleArgs rule_args(const DeltaRule& a) {
    const DeltaLayerView& state = delta_layer(a.layer, a.shape);
    return {operand("qkv", a.qkv, a.shape.channels()),
            f32("g", a.g, a.shape.value_heads),
            f32("beta", a.beta, a.shape.value_heads),
            state,
            a.section,
            result("y", a.y, a.shape.value_channels()),
            delta_on_units(l_.path, a.shape) ? l_.workspace.delta : nullptr,
            l_.path};
  }
  Call call(const DeltaRule& a) {
    const DeltaRuleArgs args = rule_args(a);
    output_ = args.y;
    section_ = &a.section;
    serves_.second = delta_rule_kernel(args);
    return [args](const Launch& to) { delta_rule(to, args); };
  }
  GatedRmsNormArgs gated_norm_args(const GatedRmsNorm& a) {
    expect(a.group > 0 && a.x.cols % a.group == 0, "group", "a divisor of the columns");
    return {operand("x", a.x),
            like("z", a.z, a.x, a.x.cols),
            constant("weight", a.weight, a.group),
            a.group,
            a.eps,
            result_like("y", a.y, a.x, a.x.cols)};
  }
  Call call(const GatedRmsNorm& a) {
    const GatedRmsNormArgs args = gated_norm_args(a);
    output_ = args.y;
    by_eights(gated_rms_norm_eights(bound_.launch, args, nullptr, Serve::ask));
    return [args](const Launch& to) { gated_rms_norm(to, args); };
  }
  Call call(const DeltaNet& a) {
    const auto has = [this](Section s) { return program_.cls.has(s); };
    const DeltaNetArgs args{conv_args(a.conv),
                            gates_args(a.gates),
                            rule_args(a.rule),
                            a.normed,
                            a.normed ? gated_norm_args(a.norm) : GatedRmsNormArgs{},
                            has(Section::decode),
                            has(Section::verify),
                            has(Section::prefill)};
    output_ = a.normed ? args.norm.y : args.rule.y;
    serves_.second = delta_net_kernel(args);
    return [args](const Launch& to) { delta_net(to, args); };
  }
  Call call(const QkNormRope& a) {
    const KvLayerView& state = attention_layer(a.layer, a.shape);
    const std::int64_t dim = a.shape.head_dim, kv = a.shape.kv_heads * dim;
    expect(a.q_head_stride >= dim && (a.shape.heads - 1) * a.q_head_stride + dim <= a.q.cols,
           "q_head_stride", "heads inside the row");
    expect(a.rotary_dim >= 0 && a.rotary_dim <= dim && a.rotary_dim % 2 == 0, "rotary_dim",
           "an even number up to head_dim");
    const ConstantView& rope = constant("rope", a.rope);
    expect(rope.shape.size() == 2 && rope.shape[1] == a.rotary_dim, "rope",
           "a table [positions, rotary_dim]");
    bound_.limits.attention = true;
    bound_.limits.positions = std::min(bound_.limits.positions, rope.shape[0]);
    const QkNormRopeArgs args{operand("q", a.q),
                              operand("k", a.k, kv),
                              operand("v", a.v, kv),
                              a.q_head_stride,
                              a.q_norm < 0 ? nullptr : constant("q_norm", a.q_norm, dim),
                              a.k_norm < 0 ? nullptr : constant("k_norm", a.k_norm, dim),
                              a.eps,
                              rope.data,
                              a.rotary_dim,
                              state,
                              result("q_out", a.q_out, a.shape.heads * dim)};
    output_ = args.q_out;
    return [args](const Launch& to) { qk_norm_rope(to, args); };
  }
  Call call(const Attention& a) {
    const KvLayerView& state = attention_layer(a.layer, a.shape);
    const std::int64_t cols = std::int64_t{a.shape.heads} * a.shape.head_dim;
    bound_.limits.attention = true;
    const bool units = attention_on_units(l_.path, a.shape);
    const AttentionArgs args{operand("q", a.q, cols), a.scale, state, a.section, result("y", a.y, cols),
                             units, l_.workspace.attention,
                             attention_split_slots(units, l_.sizes.pages, l_.sizes.slots), l_.sizes.records, l_.path};
    output_ = args.y;
    section_ = &a.section;
    if (args.units) serves_.second = attention_kernel(bound_.launch, args);
    return [args](const Launch& to) { attention(to, args); };
  }
  Call call(const SigmoidGate& a) {
    const std::int64_t cols = std::int64_t{a.heads} * a.head_dim;
    const std::int64_t reach = (a.heads - 1) * a.gate_head_stride + a.head_dim;
    expect(a.gate_head_stride >= a.head_dim && reach <= a.gate.cols, "gate",
           "heads inside the row");
    const SigmoidGateArgs args{
        operand("x", a.x, cols), like("gate", a.gate, a.x, 0),    a.heads, a.head_dim,
        a.gate_head_stride,      result_like("y", a.y, a.x, cols)};
    output_ = args.y;
    return [args](const Launch& to) { sigmoid_gate(to, args); };
  }
  Call call(const SwiGlu& a) {
    const SwiGluArgs args{operand("gate", a.gate), like("up", a.up, a.gate, a.gate.cols),
                          result_like("y", a.y, a.gate, a.gate.cols)};
    output_ = args.y;
    by_eights(swiglu_eights(bound_.launch, args, nullptr, Serve::ask));
    return [args](const Launch& to) { swiglu(to, args); };
  }
  Call call(const Add& a) {
    const AddArgs args{f32("a", a.a), f32("b", a.b, a.a.cols), f32("y", a.y, a.a.cols)};
    output_ = args.y;
    return [args](const Launch& to) { add(to, args); };
  }
  Call call(const GatherRows& a) {
    const GatherRowsArgs args{typed_view("x", a.x, a.x.dtype),
                              typed_view("y", a.y, a.x.dtype, a.x.cols)};
    expect(a.x.rows == Rows::tokens, "x", "one row for each token");
    expect(a.y.rows == Rows::outputs, "y", "one row for each output");
    output_ = args.y;
    if (a.x.dtype == DType::f16)
      return [args](const Launch& to) { gather_f16_rows(to, args.x, args.y); };
    return [args](const Launch& to) { gather_rows(to, args); };
  }
  Call call(const Sample& a) {
    expect(a.logits.rows == Rows::outputs, "logits", "one row for each output");
    bound_.limits.samples = true;
    const SampleArgs args{f32("logits", a.logits, l_.sizes.vocab), l_.counts, l_.workspace.sample,
                          l_.workspace.tokens};
    return [args](const Launch& to) { sample(to, args); };
  }
  Call call(const TokenLogprob& a) {
    expect(a.logits.rows == Rows::outputs, "logits", "one row for each output");
    bound_.limits.scores = true;
    const TokenLogprobArgs args{f32("logits", a.logits, l_.sizes.vocab), l_.workspace.logprobs};
    return [args](const Launch& to) { token_logprob(to, args); };
  }
  Call call(const Packed<RmsNorm>& a) {
    const RmsNormArgs args{f32("x", a.op.x), constant("weight", a.op.weight, a.op.x.cols), a.op.eps,
                           made("y", a.op.y, a.op.x)};
    const PackArgs pack = pack_args(a.pack, a.op.y);
    by_eights(rms_norm_eights(bound_.launch, args, &pack, Serve::ask));
    return [args, pack](const Launch& to) { rms_norm_pack(to, args, pack); };
  }
  Call call(const Packed<GatedRmsNorm>& a) {
    expect(a.op.group > 0 && a.op.x.cols % a.op.group == 0, "group", "a divisor of the columns");
    expect(a.op.x.cols / a.op.group <= kMostHeads, "group", "at most 8192 of them in a row");
    const GatedRmsNormArgs args{typed_view("x", a.op.x, l_.operand),
                                like("z", a.op.z, a.op.x, a.op.x.cols),
                                constant("weight", a.op.weight, a.op.group),
                                a.op.group,
                                a.op.eps,
                                made("y", a.op.y, a.op.x)};
    const PackArgs pack = pack_args(a.pack, a.op.y);
    by_eights(gated_rms_norm_eights(bound_.launch, args, &pack, Serve::ask));
    return [args, pack](const Launch& to) { gated_rms_norm_pack(to, args, pack); };
  }
  Call call(const Packed<SwiGlu>& a) {
    const SwiGluArgs args{typed_view("gate", a.op.gate, l_.operand),
                          like("up", a.op.up, a.op.gate, a.op.gate.cols), made("y", a.op.y, a.op.gate)};
    const PackArgs pack = pack_args(a.pack, a.op.y);
    by_eights(swiglu_eights(bound_.launch, args, &pack, Serve::ask));
    return [args, pack](const Launch& to) { swiglu_pack(to, args, pack); };
  }

  // y of an op that packs it: written only where it is valid().
  View made(const char* field, const Tensor& y, const Tensor& x) const {
    expect(l_.operand != DType::f16, field, "no rows of f16 (their ops stay apart)");
    expect(y.dtype == l_.operand && y.rows == x.rows && y.cols == x.cols, field,
           "the operand type, rows and columns of the input");
    if (y.valid()) return typed_view(field, y, l_.operand);
    return {nullptr, y.dtype, y.rows, y.cols, static_cast<std::int32_t>(y.cols), nullptr};
  }
  // Sets the output that observers see.
  PackArgs pack_args(const Pack& pack, const Tensor& y) {
    const bool fp4 = pack.format.kind == ActivationFormat::Kind::nvfp4_static;
    expect(pack.format.kind != ActivationFormat::Kind::none, "format", "a quantised one");
    expect(!fp4 || y.cols % 16 == 0, "y", "columns in multiples of 16");
    expect(pack.codes.rows == y.rows, "codes", "as many rows as the input");
    output_ = typed_view("codes", pack.codes, DType::u8, fp4 ? y.cols / 2 : y.cols);
    return {pack.format, output_, scales("scales", pack.scales, pack.format, y.cols)};
  }

  Call call(const ExpertRoute& a) {
    const std::int64_t k = a.experts_per_token, experts = a.logits.cols;
    expect(a.logits.rows == Rows::tokens, "logits", "one row for each token");
    expect(experts <= kMostExperts && k >= 1 && k <= experts, "experts_per_token", "1 to the experts, 1,024 at most");
    expect_equal("experts_per_token", program_.experts_per_token, k);
    const ExpertRouteArgs args{f32("logits", a.logits),
                               a.normalised,
                               f32("weights", a.weights, k),
                               indices("experts", a.experts, Rows::tokens, k),
                               indices("order", a.order, Rows::routed, 1),
                               indices("place", a.place, Rows::tokens, k),
                               indices("starts", a.starts, Rows::one, experts + 1)};
    output_ = args.weights;
    return [args](const Launch& to) { expert_route(to, args); };
  }
  Call call(const GroupedLinear& a) {
    expect(a.experts >= 1 && a.experts <= kMostExperts, "experts", "1 to 1,024");
    expect(a.x.rows == Rows::tokens || a.x.rows == Rows::routed, "x", "one row for each token or sorted place");
    expect(a.y.rows == Rows::routed, "y", "one row for each sorted place");
    GroupedLinearArgs args;
    args.linear = linear_args(a.x, a.x_scales, a.x_format, a.weights, a.y);
    args.order = indices("order", a.order, Rows::routed, 1);
    args.starts = indices("starts", a.starts, Rows::one, a.experts + 1);
    args.experts = a.experts;
    const WeightImage& first = args.linear.weight;
    if (a.experts > 1) args.expert_bytes = weight(a.weights + 1).codes - first.codes;
    for (std::int32_t e = 1; e < a.experts; ++e) {
      expect(follows(first, weight(a.weights + e), e * args.expert_bytes), "weights",
             "experts of one format and shape, each packed behind the one before");
      args.linear.weight.plain &= weight(a.weights + e).plain;
    }
    output_ = args.linear.y;
    serves_ = {linear_name("grouped linear ", first, a.x_format), grouped_linear_kernel(bound_.launch, args)};
    return [args](const Launch& to) { grouped_linear(to, args); };
  }
  Call call(const ExpertCombine& a) {
    expect(a.x.rows == Rows::routed, "x", "one row for each sorted place");
    expect(a.y.rows == Rows::tokens, "y", "one row for each token");
    expect(a.shared.valid() == a.shared_gate.valid(), "shared_gate", "one where there is a shared expert");
    const std::int64_t k = program_.experts_per_token;
    ExpertCombineArgs args{f32("x", a.x), f32("weights", a.weights, k), indices("place", a.place, Rows::tokens, k),
                           {}, {}, f32("y", a.y, a.x.cols)};
    if (a.shared.valid()) {
      args.shared = f32("shared", a.shared, a.x.cols);
      args.shared_gate = f32("shared_gate", a.shared_gate, 1);
    }
    output_ = args.y;
    return [args](const Launch& to) { expert_combine(to, args); };
  }

  BoundProgram& bound_;
  View output_;
  const Section* section_ = nullptr;
  std::pair<std::string, std::string> serves_;
};

}  // namespace

BoundProgram bind(Loaded& l, const Program& program, cudaStream_t stream, int multiprocessors) {
  BoundProgram bound;
  bound.limits.cls = program.cls;
  bound.limits.name = program.cls.name();
  bound.launch = {stream,        l.step.view(),  program.cls.max_rows, program.cls.max_outputs,
                  l.sizes.slots, multiprocessors,  l.workspace.sums,   program.experts_per_token};
  Binder binder(l, program, bound);
  for (const Op& op : program.ops) bound.ops.push_back(binder.bind(op));
  return bound;
}

}  // namespace nibble::cuda
