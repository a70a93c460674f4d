#include "core/api/lockstep.h"

#include <thread>

#include "core/api/probe.h"
#include "nibble/error.h"

namespace nibble {
namespace {

struct PartnerGone {};  // ends A's run when B has failed

[[noreturn]] void alone(const char* who, const Shown& shown) {
  throw Error(ErrorCode::unsupported,
              std::string("[parity] ") + who + " shows " + describe_op(*shown.op) + ", the other has ended");
}

}  // namespace

bool Lockstep::offer(const Shown& shown) {
  std::unique_lock lock(mutex_);
  if (b_gone_) return false;
  offered_ = &shown;
  changed_.notify_all();
  changed_.wait(lock, [&] { return offered_ == nullptr || b_gone_; });
  const bool looked = offered_ == nullptr;
  offered_ = nullptr;
  return looked;
}

void Lockstep::leave_a() {
  const std::lock_guard lock(mutex_);
  a_gone_ = true;
  changed_.notify_all();
}

void Lockstep::meet(const Shown& b, const Look& look) {
  const Shown* a = nullptr;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return offered_ != nullptr || a_gone_; });
    a = offered_;
  }
  if (a == nullptr) alone("B", b);
  look(*a, b);  // A waits, so what it shows stays
  const std::lock_guard lock(mutex_);
  offered_ = nullptr;
  changed_.notify_all();
}

void Lockstep::finish_b() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return offered_ != nullptr || a_gone_; });
  if (offered_ != nullptr) alone("A", *offered_);
}

void Lockstep::leave_b() {
  const std::lock_guard lock(mutex_);
  b_gone_ = true;
  changed_.notify_all();
}

void Lockstep::run(const Run& a, const Run& b, const Look& look) {
  Lockstep step;
  std::exception_ptr failed_a, failed_b;
  std::thread other([&] {
    try {
      a([&](const Op& op, std::int64_t rows, std::int64_t cols, std::span<const float> data) {
        if (!step.offer({&op, rows, cols, data})) throw PartnerGone{};
      });
    } catch (const PartnerGone&) {
    } catch (...) {
      failed_a = std::current_exception();
    }
    step.leave_a();
  });
  try {
    b([&](const Op& op, std::int64_t rows, std::int64_t cols, std::span<const float> data) {
      step.meet({&op, rows, cols, data}, look);
    });
    step.finish_b();
  } catch (...) {
    failed_b = std::current_exception();
  }
  step.leave_b();
  other.join();
  // When A fails, B is left alone and fails for that: A's word comes first.
  if (failed_a) std::rethrow_exception(failed_a);
  if (failed_b) std::rethrow_exception(failed_b);
}

}  // namespace nibble
