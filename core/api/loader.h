// loader.h: from files (or a named shape) to a model that is ready to step.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/api/impl.h"
#include "core/api/model_files.h"
#include "core/checkpoint/quant_config.h"
#include "core/checkpoint/tensor_source.h"
#include "core/layers/decoder.h"
#include "nibble/model.h"

namespace nibble {

// Everything known of a model before weights move: description traced, arenas sized.
struct Draft {
  std::unique_ptr<Decoder> decoder;  // owns what the spec's weights refer to by address
  std::shared_ptr<const TensorSource> source;
  std::vector<const TensorInfo*> vectors;  // of the source: what is no matrix, as the file has it
  std::unique_ptr<Backend> backend;
  ModelSpec spec;
  std::vector<std::pair<WeightId, Weight>> nvfp4;  // mode a8: what of spec.weights is re-encoded, as the file has it
  EngineConfig engine;
  MemoryPlan memory;
  ModelInfo info;
};

// The backend that `on` names. Throws Error(not_found) for a name that there is not and Error(unsupported)
// where it finds no device.
const BackendEntry& backend_for(const Device& on);
BackendOptions backend_options(const Device& on);

// Describes, traces and sizes. Throws as Model::load does, but never for lack of memory. `classes`: the
// programs to trace; empty: those of the engine.
Draft draft_model(const JsonView& config, const QuantConfig& quant,
                  std::shared_ptr<const TensorSource> source, const Device& on, const LoadOptions& how,
                  std::vector<ProgramClass> classes = {});
Draft draft_files(const ModelFiles& files, const Device& on, const LoadOptions& how,
                  std::vector<ProgramClass> classes = {});

// Joins the stop tokens of both sides and notes tokenizer and template in the draft's info.
void add_text_side(Draft& draft, Model::Impl& model);

// Compares the plan with what is free, then moves the weights: the backend is ready to run, and of the
// draft only `backend`, `engine`, `memory` and `info` are left.
void move_weights(Draft& draft, const LoadOptions& how);

// Moves the weights and starts the engine.
void bring_up(Draft draft, const LoadOptions& how, Model::Impl& model);

std::string human_bytes(std::uint64_t bytes);

}  // namespace nibble
