// wide_rows.h: float32 copies of an op's f16 rows, for the ops that have no kernel on f16 buffers.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "backends/cuda/memory.h"
#include "backends/cuda/ops/f16_rows.h"
#include "core/program/program.h"

namespace nibble::cuda {

// Of one op at a time. Views of other types pass through.
class WideRows {
 public:
  using Call = std::function<void(const Launch&)>;

  void reset(std::byte* memory, std::uint64_t bytes, const Program& program) {
    at_ = memory;
    left_ = bytes;
    program_ = &program;
    reads_.clear();
    writes_.clear();
  }
  View read(const View& v) { return copy(v, reads_); }
  View write(const View& v) { return copy(v, writes_); }

  // `call` with its inputs widened before and its outputs narrowed behind it; `section`: only those
  // rows.
  Call around(Call call, const Section* section) const {
    if (reads_.empty() && writes_.empty()) return call;
    return [call = std::move(call), section, reads = reads_, writes = writes_](const Launch& to) {
      for (const F16RowsArgs& rows : reads) widen_rows(to, rows, section);
      call(to);
      for (const F16RowsArgs& rows : writes) narrow_rows(to, rows, section);
    };
  }
  // What an output view of the call is copied to.
  View stored(const View& v) const {
    for (const F16RowsArgs& rows : writes_) {
      if (rows.wide.data == v.data) return rows.half;
    }
    return v;
  }

 private:
  View copy(const View& v, std::vector<F16RowsArgs>& list) {
    if (v.dtype != DType::f16) return v;
    const std::uint64_t bytes = aligned(static_cast<std::uint64_t>(program_->rows_of(v.rows)) *
                                        static_cast<std::uint64_t>(v.cols) * sizeof(float));
    if (bytes > left_)
      throw Error(ErrorCode::internal, "[cuda] float32 copies of f16 rows: no room left");
    const View wide{at_, DType::f32, v.rows, v.cols, v.cols, nullptr};
    at_ += bytes;
    left_ -= bytes;
    list.push_back({v, wide});
    return wide;
  }

  std::byte* at_ = nullptr;
  std::uint64_t left_ = 0;
  const Program* program_ = nullptr;
  std::vector<F16RowsArgs> reads_, writes_;
};

}  // namespace nibble::cuda
