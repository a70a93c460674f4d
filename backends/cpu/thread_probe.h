// thread_probe.h: how many threads the system would give.
#pragma once

namespace nibble::cpu {

// At most `wanted`: how many more threads, with the stacks that TBB gives them, can exist at one
// time. They have ended when it returns.
int threads_that_start(int wanted);

}  // namespace nibble::cpu
