// info_json.cpp: keys are those of the C++ structs, bytes and counts are integers.
#include "core/api/info_json.h"

namespace nibble {

Json to_json(const ModelInfo& info) {
  Json::Array formats, programs, notes;
  for (const auto& row : info.formats) {
    formats.emplace_back(Json::Object{{"format", row.format},
                                      {"tensors", row.tensors},
                                      {"parameters", row.parameters},
                                      {"bytes", row.bytes}});
  }
  for (const auto& row : info.programs) {
    programs.emplace_back(
        Json::Object{{"name", row.name}, {"ops", row.ops}, {"scratch_bytes", row.scratch_bytes}});
  }
  for (const auto& note : info.notes) notes.emplace_back(note);
  return Json::Object{{"architecture", info.architecture},
                      {"layers", info.layers},
                      {"hidden", info.hidden},
                      {"vocab", info.vocab},
                      {"max_positions", info.max_positions},
                      {"backend", info.backend},
                      {"device", info.device},
                      {"kernels", info.kernels},
                      {"profile", info.profile},
                      {"activations", info.activations},
                      {"threads", info.threads},
                      {"formats", std::move(formats)},
                      {"weight_bytes", info.weight_bytes},
                      {"constant_bytes", info.constant_bytes},
                      {"kv_bytes", info.kv_bytes},
                      {"delta_bytes", info.delta_bytes},
                      {"scratch_bytes", info.scratch_bytes},
                      {"count_bytes", info.count_bytes},
                      {"programs", std::move(programs)},
                      {"notes", std::move(notes)}};
}

Json to_json(const StepStats& stats) {
  Json::Object kernels;
  for (const auto& [op, implementation] : stats.kernels) kernels.emplace_back(op, implementation);
  return Json::Object{{"steps", stats.steps},
                      {"launches", stats.launches},
                      {"last_launches", stats.last_launches},
                      {"host_to_device_bytes", stats.host_to_device_bytes},
                      {"device_to_host_bytes", stats.device_to_host_bytes},
                      {"collectives", stats.collectives},
                      {"allocations", stats.allocations},
                      {"prefill_tokens", stats.prefill_tokens},
                      {"decode_tokens", stats.decode_tokens},
                      {"prefill_seconds", stats.prefill_seconds},
                      {"decode_seconds", stats.decode_seconds},
                      {"kernels", std::move(kernels)}};
}

}  // namespace nibble
