#include "core/program/planner.h"

#include <algorithm>
#include <numeric>

namespace nibble {
namespace {

template <class... F>
struct Overload : F... {
  using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;

}  // namespace

// The one place that knows which tensors of an op are read and which are written.
void visit_tensors(OpArgs& args, const std::function<void(Tensor&)>& read,
                   const std::function<void(Tensor&)>& write) {
  const auto pack = [&](Pack& to) { write(to.codes), write(to.scales); };
  const auto add_norm = [&](AddRmsNorm& op) {  // what an observer sees first; the sum is named twice
    read(op.add.a), read(op.add.b);
    write(op.norm.y), write(op.add.y), write(op.norm.x);
  };
  std::visit(Overload{
                 [&](Embed& op) { write(op.y); },
                 [&](RmsNorm& op) { read(op.x), write(op.y); },
                 [&](Quantize& op) { read(op.x), write(op.codes), write(op.scales); },
                 [&](Linear& op) { read(op.x), read(op.x_scales), write(op.y); },
                 [&](DeltaConv& op) { read(op.x), write(op.y); },
                 [&](DeltaGates& op) { read(op.a), read(op.b), write(op.g), write(op.beta); },
                 [&](DeltaRule& op) { read(op.qkv), read(op.g), read(op.beta), write(op.y); },
                 [&](GatedRmsNorm& op) { read(op.x), read(op.z), write(op.y); },
                 [&](QkNormRope& op) { read(op.q), read(op.k), read(op.v), write(op.q_out); },
                 [&](Attention& op) { read(op.q), write(op.y); },
                 [&](SigmoidGate& op) { read(op.x), read(op.gate), write(op.y); },
                 [&](SwiGlu& op) { read(op.gate), read(op.up), write(op.y); },
                 [&](Add& op) { read(op.a), read(op.b), write(op.y); },
                 [&](GatherRows& op) { read(op.x), write(op.y); },
                 [&](Sample& op) { read(op.logits); },
                 [&](TokenLogprob& op) { read(op.logits); },
                 [&](Packed<RmsNorm>& op) { read(op.op.x), write(op.op.y), pack(op.pack); },
                 [&](Packed<GatedRmsNorm>& op) {
                   read(op.op.x), read(op.op.z), write(op.op.y), pack(op.pack);
                 },
                 [&](Packed<SwiGlu>& op) {
                   read(op.op.gate), read(op.op.up), write(op.op.y), pack(op.pack);
                 },
                 [&](ExpertRoute& op) {
                   read(op.logits);
                   for (Tensor* t : {&op.weights, &op.experts, &op.order, &op.place, &op.starts}) write(*t);
                 },
                 [&](GroupedLinear& op) {
                   for (Tensor* t : {&op.x, &op.x_scales, &op.order, &op.starts}) read(*t);
                   write(op.y);
                 },
                 [&](LinearSwiGlu& op) { read(op.x), read(op.x_scales), write(op.y); },
                 [&](DeltaNet& op) {  // the output first; tensors between its parts are named twice
                   read(op.conv.x), read(op.gates.a), read(op.gates.b);
                   if (op.normed) read(op.norm.z), write(op.norm.y);
                   if (!op.normed) write(op.rule.y);
                   write(op.conv.y), write(op.rule.qkv);
                   write(op.gates.g), write(op.rule.g), write(op.gates.beta), write(op.rule.beta);
                   if (op.normed) write(op.rule.y), write(op.norm.x);
                 },
                 [&](AddRmsNorm& op) { add_norm(op); },
                 [&](Packed<AddRmsNorm>& op) { add_norm(op.op), pack(op.pack); },
                 [&](GatedAttention& op) {  // the output is named three times
                   read(op.attention.q), read(op.gate.gate);
                   write(op.gate.y), write(op.gate.x), write(op.attention.y);
                 },
                 [&](ExpertCombine& op) {
                   for (Tensor* t : {&op.x, &op.weights, &op.place, &op.shared, &op.shared_gate}) read(*t);
                   write(op.y);
                 },
             },
             args);
}

namespace {

struct Life {
  int first = -1, last = -1;
  void touch(int at) {
    if (first < 0) first = at;
    last = std::max(last, at);
  }
  bool meets(const Life& o) const { return first <= o.last && o.first <= last; }
};

std::vector<Life> lifetimes(const Program& program) {
  std::vector<Life> lives(program.buffers.size());
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[static_cast<std::size_t>(i)];
    for (const auto b : op.reads) lives[static_cast<std::size_t>(b)].touch(i);
    for (const auto b : op.writes) lives[static_cast<std::size_t>(b)].touch(i);
  }
  return lives;
}

// Input whose elements the op reads only where it writes the same element of y.
const Tensor* overwritable(const OpArgs& args) {
  if (const auto* op = std::get_if<Add>(&args)) return &op->a;
  if (const auto* op = std::get_if<AddRmsNorm>(&args)) return &op->add.a;
  if (const auto* op = std::get_if<Packed<AddRmsNorm>>(&args)) return &op->op.add.a;
  if (const auto* op = std::get_if<SwiGlu>(&args)) return &op->gate;
  if (const auto* op = std::get_if<SigmoidGate>(&args)) return &op->x;
  return nullptr;
}

Tensor* output(OpArgs& args) {
  if (auto* op = std::get_if<Add>(&args)) return &op->y;
  if (auto* op = std::get_if<AddRmsNorm>(&args)) return &op->add.y;
  if (auto* op = std::get_if<Packed<AddRmsNorm>>(&args)) return &op->op.add.y;
  if (auto* op = std::get_if<SwiGlu>(&args)) return &op->y;
  if (auto* op = std::get_if<SigmoidGate>(&args)) return &op->y;
  return nullptr;
}

bool covers_buffer(const Program& program, const Tensor& t) {
  const Buffer& b = program.buffers[static_cast<std::size_t>(t.buffer)];
  return t.offset == 0 && t.stride == t.cols && t.cols == b.cols && t.dtype == b.dtype &&
         t.rows == b.rows;
}

void replace_buffer(Program& program, std::int32_t from, std::int32_t to) {
  const auto swap = [&](Tensor& t) {
    if (t.buffer == from) t.buffer = to;
  };
  for (Op& op : program.ops) {
    visit_tensors(op.args, swap, swap);
    collect_uses(op);
  }
  swap(program.logits);
}

void write_in_place(Program& program) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Tensor* in = overwritable(program.ops[i].args);
    if (in == nullptr) continue;
    const Tensor source = *in, target = *output(program.ops[i].args);
    const bool dies = lifetimes(program)[static_cast<std::size_t>(source.buffer)].last == static_cast<int>(i);
    if (dies && source.dtype == target.dtype && covers_buffer(program, source) &&
        covers_buffer(program, target)) {
      replace_buffer(program, target.buffer, source.buffer);
    }
  }
}

}  // namespace

void collect_uses(Op& op) {
  op.reads.clear();
  op.writes.clear();
  const auto note = [](std::vector<std::int32_t>& list) {
    return [&list](const Tensor& t) {
      if (t.valid() && std::find(list.begin(), list.end(), t.buffer) == list.end()) {
        list.push_back(t.buffer);
      }
    };
  };
  visit_tensors(op.args, note(op.reads), note(op.writes));
}

void plan(Program& program, const PlanOptions& how) {
  if (how.in_place) write_in_place(program);
  const std::vector<Life> lives = lifetimes(program);

  // Largest first, each at the lowest offset that no buffer alive at the same time occupies.
  std::vector<std::size_t> order(program.buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return program.buffers[a].bytes > program.buffers[b].bytes;
  });
  const auto aligned = [](std::int64_t n) { return (n + kBufferAlign - 1) / kBufferAlign * kBufferAlign; };
  std::vector<std::size_t> placed;  // ascending by offset
  program.scratch_bytes = 0;
  for (const std::size_t id : order) {
    Buffer& buffer = program.buffers[id];
    if (lives[id].first < 0) continue;
    std::int64_t at = 0;
    for (const std::size_t other : placed) {
      const Buffer& o = program.buffers[other];
      if (!lives[id].meets(lives[other])) continue;
      if (at + buffer.bytes <= o.offset) break;
      at = std::max(at, aligned(o.offset + o.bytes));
    }
    buffer.offset = at;
    program.scratch_bytes = std::max(program.scratch_bytes, aligned(at + buffer.bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), id,
                                   [&](std::size_t a, std::size_t b) {
                                     return program.buffers[a].offset < program.buffers[b].offset;
                                   }),
                  id);
  }
}

}  // namespace nibble
