// signals.h: Ctrl-C as a counter that loops look at.
#pragma once

namespace nibble::tool {

// SIGINT is counted; the second one before a reset leaves at once with status 130. SIGPIPE is
// ignored, so that a write reports it. Standard streams that are closed get a descriptor that
// refuses.
void prepare_process();

bool interrupted();
void reset_interrupts();

}  // namespace nibble::tool
