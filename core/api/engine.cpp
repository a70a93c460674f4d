#include "nibble/engine.h"

#include "core/api/impl.h"

namespace nibble {

Engine::Engine(const Model& model) : model_(model.shared()) {}

bool Engine::step() { return model_->engine->step(); }
std::int64_t Engine::running() const { return model_->engine->running(); }
StepStats Engine::stats() const { return model_->engine->stats(); }

}  // namespace nibble
