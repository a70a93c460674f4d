// ops.h: every op that a program may hold. Each struct is a contract: shapes, formula, order of
// operations and rounding points of profile f32 (the CPU's own); docs/numerics.md says what the others
// change: Linear runs on matrix units or multiplies bf16, and in the GPU profiles buffers marked `operand` hold bf16 or f16.
// T = rows of the batch, all matrices row-major, "chain" = one accumulator from +0, fma in ascending order. num:: is core/numerics.
//
// Row r of every output depends on the sequence of row r only. (Which sorted place a routed row has depends on the
// other rows, what it holds does not.)
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/checkpoint/weight.h"
#include "core/ops/expert_limits.h"
#include "core/program/tensor.h"

namespace nibble {

using WeightId = std::int32_t;    // index into ModelSpec::weights
using ConstantId = std::int32_t;  // index into ModelSpec::constants; -1: none

// A batch has its rows in three sections, in this order. Ops that touch a sequence's state run once
// for each section; an empty section returns at once.
enum class Section : std::uint8_t {
  decode,   // one row a sequence, token chosen by the model
  verify,   // several rows a sequence, drafts to be accepted or taken back
  prefill,  // rows of a prompt
};
const char* section_name(Section s);

// y[t, :] = table[token[t], :], widened to y's type. Exact. table [vocab, H]. A quantised table gives
// Linear's operand of w times its tensor, row or block128 scale, rounded once. In the 16-bit profiles the
// operand of an f16 or f32 table is rounded to bf16 (sm70: rows of f16), as Linear's is: one image serves both.
struct Embed {
  WeightId table;
  Tensor y;  // [T, H] f32
};

// y[t, c] = (x[t, c] * num::rsqrt(sum / cols + eps)) * w[c], sum = tree of fma squares (reduce.h),
// sum / cols = num::mul(sum, float(1.0 / cols)).   2 flop, 8 bytes an element.
struct RmsNorm {
  Tensor x;  // [T, H] f32
  ConstantId weight;  // [H], (1 + w) already folded in where the model wants it
  float eps;
  Tensor y;  // [T, H] operand
};

// Activations to the format that the checkpoint declares (ActivationFormat::Kind).
// amax: the largest |x| of the group, NaN ignored (0 where all are NaN).
//   nvfp4_static        s[t, g] = e4m3(amax of 16 / 6 / scale) in that order of divisions,
//                       code = e2m1(x / (s * scale)); s = 0 gives codes 0
//   fp8_tensor_static   code = e4m3(x / scale)
//   fp8_token           s[t] = amax / 448 (1 where amax is 0), code = e4m3(x / s[t])
//   fp8_token_group128  the same for each 128 columns (the last group may be shorter)
struct Quantize {
  Tensor x;       // [T, K] operand
  ActivationFormat format;
  Tensor codes;   // u8: [T, K / 2] low nibble = even k, or [T, K] e4m3
  Tensor scales;  // nvfp4: u8 e4m3 [T, K / 16]; fp8_token: f32 [T, 1]; group128: f32 [T, ceil(K/128)]
};

// y[t, n] = sum_k x[t, k] * w[n, k].
// Operand of w: nvfp4 code * block scale (exact), fp8 the code, bf16/f16/f32 the value. K is cut in
// segments of 128 from k = 0; each segment is a chain; total starts at +0 and, segments ascending,
//   total = total + segment                          (block128 weights: fma(segment, block scale, total);
//                                                     group128 activations: segment * activation scale first)
// Then y = total * alpha[n], alpha = tensor or row scale of w (1 for none and block128), and with
// quantised activations y = y * (static scale or row scale). Activation operand: e2m1 code * e4m3
// block scale, or the e4m3 code, exact in f32.
//
// Mode a8 (lossy, opt-in): a linear layer whose weight is NVFP4 or FP8 reads fp8_token activations, whatever the
// checkpoint declares, with fp8_unit set; others run as in a16.
//   NVFP4  re-encoded at load to e4m3 codes and one tensor scale (core/numerics/fp8_reencode.h); the layer has that FP8
//          weight from then on, and an Embed of the same matrix reads it too
//   FP8    its own codes, with a tensor, row or block128 scale as above: none of them stands inside a sum
// fp8_unit: profile sm90 multiplies code by code on its FP8 unit (core/numerics/matrix_order.h), K in segments of 128.
// Other profiles compute what they compute for any fp8_token input.
struct Linear {
  Tensor x;         // [T, K] operand, or Quantize's codes
  Tensor x_scales;  // Quantize's scales; not valid() for unquantised x and for fp8_tensor_static
  ActivationFormat x_format;  // Kind::none for unquantised x
  WeightId weight;  // [N, K]
  Tensor y;         // [T, N] f32 or operand
  bool fp8_unit = false;  // only with an FP8 weight and fp8_token
};

// A mixture of experts: which of E experts serve a token, k of them, from the router's logits z. NaN counts as -inf.
//   experts[t, s]   the first k by (z descending, id ascending); s = 0 is z_first
//   p_e = num::exp(num::sub(z_e, z_first)), 1 where z_e equals z_first (so infinities leave no NaN)
//   weights[t, s] = num::div(p, total), total = tree sum over s of the chosen p where `normalised` (Qwen's
//                   norm_topk_prob), else tree sum over e, ids ascending, of all p: softmax over E
// Pair j = t * k + s is slot s of token t. Pairs are sorted by (expert, j), which is stable: sorted place i holds pair
// order[i], pair j lies at place[j], and expert e has places starts[e] .. starts[e + 1] - 1, perhaps none.
struct ExpertRoute {
  Tensor logits;                   // [T, E] f32, E at most kMostExperts
  std::int32_t experts_per_token;  // k, 1 .. E; Program::experts_per_token
  bool normalised;
  Tensor weights;  // [T, k] f32
  Tensor experts;  // [T, k] i32
  Tensor order;    // [T * k, 1] i32, Rows::routed
  Tensor place;    // [T, k] i32
  Tensor starts;   // [1, E + 1] i32, Rows::one
};

// Linear, sorted place i with the weight of its expert: y[i, :] is bit for bit what Linear of that expert's [N, K]
// alone makes of the row, so segments, scales and epilogue are those, however many rows any expert has.
// Expert e's weight has id `weights` + e: each expert is a Weight like any other, with a name and global scales of its
// own, so that a checkpoint's reader, invented weights and packing know no experts. All have one format, scale layout
// and shape; those of one op are packed one behind the other, which is what makes them one operand on a device.
struct GroupedLinear {
  Tensor x;         // Linear's, [T, K]: place i reads row order[i] / k; or [T * k, K] (Rows::routed): row i
  Tensor x_scales;  // as many rows as x
  ActivationFormat x_format;
  Tensor order, starts;  // ExpertRoute's
  WeightId weights;
  std::int32_t experts;  // E
  Tensor y;              // [T * k, N] f32 or operand, Rows::routed
};

// y[t, c] = chain over s, ascending, of weights[t, s] * x[place[t, s], c]; with a shared expert, whose gate is a logit
// for each token, then y = fma(num::sigmoid(shared_gate[t]), shared[t, c], y).
struct ExpertCombine {
  Tensor x;                    // [T * k, H] f32, Rows::routed
  Tensor weights, place;       // ExpertRoute's
  Tensor shared, shared_gate;  // [T, H] and [T, 1] f32, or both not valid()
  Tensor y;                    // [T, H] f32
};

// Shapes of a gated delta net layer. Channels C = 2 * key_heads * key_dim + value_heads * value_dim,
// ordered q heads, k heads, v heads. Value head h reads key head h / (value_heads / key_heads).
struct DeltaShape {
  std::int32_t key_heads, value_heads, key_dim, value_dim, conv_kernel;
  constexpr std::int64_t key_channels() const { return std::int64_t{key_heads} * key_dim; }
  constexpr std::int64_t value_channels() const { return std::int64_t{value_heads} * value_dim; }
  constexpr std::int64_t channels() const { return 2 * key_channels() + value_channels(); }
};

// Causal depthwise convolution, silu, then per head of q and k the l2 norm; q also * key_dim^-0.5.
//   c[t, ch] = chain over j = 0 .. kernel-1 of w[ch, j] * raw[t - kernel + 1 + j, ch], oldest first;
//              before a sequence's start raw is 0; earlier raw rows come from the conv state
//   s = num::silu(c); v = s; q, k: s * num::rsqrt(tree of squares over the head + 1e-6),
//   q then * float(1 / sqrt(key_dim)). Rounded to y's type once, at the end.
struct DeltaConv {
  Tensor x;  // [T, C] operand, raw projection
  ConstantId weight;  // [C, kernel]
  DeltaShape shape;
  std::int32_t layer;  // index among delta-net layers of the state
  Section section;
  Tensor y;  // [T, C] operand
};

// g = neg_exp_a[h] * num::softplus(a + dt_bias[h])  (<= 0),  beta = num::sigmoid(b).
struct DeltaGates {
  Tensor a, b;                    // [T, value_heads] f32
  ConstantId neg_exp_a, dt_bias;  // [value_heads]; neg_exp_a = -exp(A_log), folded at load
  Tensor g, beta;                 // [T, value_heads] f32
};

// The gated delta rule (Yang et al., "Gated Delta Networks", arXiv 2412.06464), state S [K, V] f32.
// decode and verify rows, one after the other:
//   d = num::exp(g);  S = d * S;  p[v] = chain over k of S[k, v] * key[k];  u[v] = beta * (value[v] - p[v])
//   S[k, v] = fma(key[k], u[v], S[k, v]);  o[v] = chain over k of S[k, v] * q[k]
//   The row is kept as a record (key, u, d); the state in memory takes it only when the next step of
//   the sequence commits it, with these same operations, so taking a row back is moving a cursor.
// prefill rows, in chunks on the absolute 64-grid (chunk of row at position p: p / 64), C rows each:
//   G_i = running sum of g from the chunk's first row of this batch (sequential adds from +0)
//   L[i, j] = (beta_i * (chain over k of k_i k_j)) * num::exp(G_i - G_j)   for j < i
//   P[i, v] = chain over k of S[k, v] k_i[k];   R[i, v] = beta_i * (value_i[v] - num::exp(G_i) * P[i, v])
//   u_i[v] = R[i, v] - chain over j < i of L[i, j] u_j[v]                 (forward substitution)
//   o_i[v] = num::exp(G_i) * (chain over k of S[k, v] q_i[k])
//            + chain over j <= i of ((chain over k of q_i k_j) * num::exp(G_i - G_j)) u_j[v]
//   S[k, v] = num::exp(G_last) * S[k, v] + chain over j of (num::exp(G_last - G_j) * k_j[k]) u_j[v]
// Before the first row of a section's range, S takes the records that Range::keep accepts, oldest
// first: S[k, v] = fma(key[k], u[v], d * S[k, v]). Columns v know nothing of each other.
// Profiles sm90, sm120 and sm70 compute prefill rows as core/numerics/delta_order.h says, for the head sizes named there.
struct DeltaRule {
  Tensor qkv;      // [T, C] operand, DeltaConv's output
  Tensor g, beta;  // [T, value_heads] f32
  DeltaShape shape;
  std::int32_t layer;
  Section section;
  Tensor y;  // [T, value_heads * value_dim] operand
};

// Per group of `group` columns: y = ((x * num::rsqrt(tree of squares / group + eps)) * w) * num::silu(z).
struct GatedRmsNorm {
  Tensor x, z;        // [T, heads * group] operand, as y
  ConstantId weight;  // [group]
  std::int32_t group;
  float eps;
  Tensor y;
};

struct AttentionShape {
  std::int32_t heads, kv_heads, head_dim;  // query head h reads kv head h / (heads / kv_heads)
};

// Per head: rms norm of q and k (as RmsNorm over head_dim; skipped where there is no weight), rotary
// embedding of the first rotary_dim columns, pairs (i, i + rotary_dim / 2):
//   a' = fma(a, cos, -(b * sin)),  b' = fma(b, cos, a * sin), cos and sin from a table made on the host
// then k and v go to the KV pages at the row's position, q to its own buffer. Rounded once, at the end. Where the state
// keeps keys and values in fp8 (StateLayout::kv): then, of each row of a kv head, codes and a scale as
// core/numerics/kv_codes.h has them.
struct QkNormRope {
  Tensor q;                   // head h at columns h * q_head_stride
  std::int64_t q_head_stride;
  Tensor k, v;                // [T, kv_heads * head_dim] operand, as q and q_out
  ConstantId q_norm, k_norm;  // [head_dim] or -1
  float eps;
  ConstantId rope;            // [positions, rotary_dim]: cos of all pairs, then sin
  std::int32_t rotary_dim;
  AttentionShape shape;
  std::int32_t layer;  // index among attention layers of the state
  Tensor q_out;        // [T, heads * head_dim]
};

// Causal softmax attention over the sequence's KV pages, at positions 0 .. p (p: the row's own).
//   s_j = (chain over d of q[d] k_j[d]) * scale;  tiles of 64 keys and splits of 1,024 at absolute
//   positions. In a split: m, l, O start at -inf, 0, 0; for each tile ascending: m' = max(m, max s),
//   f = num::exp(m - m') (0 at the first tile), p_j = num::exp(s_j - m'), 0 for keys beyond p,
//   l = fma(l, f, tree sum of the tile's 64 p), O[d] = O[d] * f, then a chain over the keys up to p,
//   ascending, continues O[d] = fma(p_j, v_j[d], O[d]): what lies behind p changes nothing.
//   Splits are combined ascending in the same way: f = num::exp(m_a - m), h = num::exp(m_b - m),
//   l = fma(l_b, h, l_a * f), O = fma(O_b, h, O_a * f).   y = O * num::div(1, l).
// Of keys and values in fp8 (kv_codes.h), codes c with scales k_j and v_j:
//   s_j = ((chain over d of q[d] c_j[d]) * k_j) * scale,  O[d] = fma(p_j * v_j, c_j[d], O[d]); l sums p_j.
// Profiles sm90, sm120 and, of prefill rows, sm70 compute as core/numerics/attention_order.h says, for the head sizes named there.
struct Attention {
  Tensor q;  // [T, heads * head_dim] operand
  AttentionShape shape;
  float scale;
  std::int32_t layer;
  Section section;
  Tensor y;  // [T, heads * head_dim] operand
};

// y[t, h * head_dim + d] = x * num::sigmoid(gate[t, h * gate_head_stride + d]).
struct SigmoidGate {
  Tensor x;  // operand, as gate and y
  Tensor gate;
  std::int32_t heads, head_dim;
  std::int64_t gate_head_stride;
  Tensor y;
};

// y = num::silu(gate) * up.
struct SwiGlu {
  Tensor gate, up, y;  // [T, I] operand
};

// y = a + b: the residual stream, always f32.
struct Add {
  Tensor a, b, y;
};

// y[o, :] = x[output_row[o], :]. Exact.
struct GatherRows {
  Tensor x;  // [T, H]
  Tensor y;  // [outputs, H]
};

// Next token of each output row from its logits and Batch::sampling. A NaN logit counts as -inf.
//   penalty r != 1, for ids that the sequence has up to this row: z = z > 0 ? z / r : z * r
//   temperature 0: the largest z, the lowest id among equals
//   else candidates by (z descending, id ascending), the first top_k of them (0: all);
//   p = num::exp(num::div(z - z_first, temperature)), 1 where z equals z_first; the list ends before
//   the first p < 2^-24, which a draw could not reach; total = tree sum of p in list order; min_p: the
//   list ends before the first p < min_p; top_p < 1: it ends with the first candidate whose running
//   sum (f32, from the top) reaches top_p * total; one candidate always stays. With s the running sum
//   at the list's end and u = num::uniform(seed, position of the new token, 0), the first candidate
//   whose running sum exceeds u * s is drawn (u * s < s after rounding, so there is one).
struct Sample {
  Tensor logits;  // [outputs, vocab] f32
};

// Batch::targets[o]'s log-probability: z_target - z_max - log(tree sum of num::exp(z - z_max)), the
// sum in f32; differences and log in double, on the host side of the result. NaN gives NaN.
struct TokenLogprob {
  Tensor logits;  // [outputs, vocab] f32
};

// `First` and a Quantize of its y in one pass: exactly the bytes that the two leave, one after the other;
// what is quantised is y as a buffer of its type would hold it (f16: with the row's exponent). Where
// nobody else reads y it is not valid(): it is not written, its type, rows and columns still count.
struct Pack {
  ActivationFormat format;
  Tensor codes, scales;  // as Quantize's
};
template <class First>
struct Packed {
  First op;
  Pack pack;
};

// Two Linear that read the same x and SwiGlu of what they make, in one pass: exactly the bytes that the three leave, so
// that gate and up are rounded to y's type before SwiGlu's formula. They have no buffers.
struct LinearSwiGlu {
  Tensor x, x_scales;  // Linear's
  ActivationFormat x_format;
  WeightId gate, up;  // [I, K] of one format, I a multiple of 8, no 128x128 scales; no other op reads them
  Tensor y;           // [T, I] operand
};

// A gated delta net between its projections and its output, in one: DeltaGates, a DeltaConv and a DeltaRule for each
// section of the class and, where `normed`, the GatedRmsNorm behind them: exactly the bytes that they leave, one after
// the other. `conv.section` and `rule.section` are not looked at. Buffers between them (conv.y, gates.g, gates.beta) are
// the backend's to use while the op runs: what they hold afterwards is not said. Where normed, rule.y may be norm.y.
struct DeltaNet {
  DeltaConv conv;
  DeltaGates gates;
  DeltaRule rule;  // of conv.y, gates.g and gates.beta
  bool normed;     // the output is norm.y, otherwise rule.y
  GatedRmsNorm norm;  // of rule.y, each head a group; nothing without `normed`
};

// Add and the RmsNorm that reads the sum, in one: exactly the bytes that the two leave, one after the other. Packed, what is
// quantised is the norm's y. An element of the sum is read nowhere before it is written: add.y may be add.a.
struct AddRmsNorm {
  Add add;
  RmsNorm norm;  // of add.y
};

// An Attention for each section of the class and the SigmoidGate behind them, in one: exactly the bytes that they leave, one
// after the other, so that attention's rows are rounded to y's type before they are gated. They have no buffer:
// attention.y and gate.x are gate.y. `attention.section` is not looked at.
struct GatedAttention {
  Attention attention;
  SigmoidGate gate;
};

using OpArgs = std::variant<Embed, RmsNorm, Quantize, Linear, DeltaConv, DeltaGates, DeltaRule,
                            GatedRmsNorm, QkNormRope, Attention, SigmoidGate, SwiGlu, Add, GatherRows,
                            Sample, TokenLogprob, Packed<RmsNorm>, Packed<GatedRmsNorm>, Packed<SwiGlu>,
                            ExpertRoute, GroupedLinear, ExpertCombine, LinearSwiGlu, DeltaNet, AddRmsNorm,
                            Packed<AddRmsNorm>, GatedAttention>;

struct Op {
  std::string name;  // where in the model: "layers.3.self_attn.q_proj"
  OpArgs args;
  std::vector<std::int32_t> reads, writes;  // buffers, for the planner
};

bool packs(const OpArgs& args);             // a Packed
const char* op_kind(const OpArgs& args);  // "rms_norm", "linear", ...

}  // namespace nibble
