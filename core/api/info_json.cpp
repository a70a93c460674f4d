// info_json.cpp: keys are those of the C++ structs, bytes and counts are integers.
#include "core/base/json.h"
#include "nibble/model.h"
#include "nibble/stats.h"

namespace nibble {

std::uint64_t ModelInfo::total_bytes() const {
  return weight_bytes + constant_bytes + kv_bytes + delta_bytes + scratch_bytes + count_bytes;
}

std::string ModelInfo::json() const {
  Json::Array format_rows, program_rows, note_lines, file_rows, reencoded_rows;
  for (const auto& row : files) {
    file_rows.emplace_back(Json::Object{{"name", row.name}, {"tensors", row.tensors}, {"bytes", row.bytes}});
  }
  for (const auto& row : formats) {
    format_rows.emplace_back(Json::Object{{"format", row.format},
                                          {"tensors", row.tensors},
                                          {"parameters", row.parameters},
                                          {"bytes", row.bytes}});
  }
  for (const auto& row : programs) {
    program_rows.emplace_back(
        Json::Object{{"name", row.name}, {"ops", row.ops}, {"scratch_bytes", row.scratch_bytes}});
  }
  for (const auto& row : reencoded) {
    reencoded_rows.emplace_back(Json::Object{{"name", row.name},
                                             {"rows", row.rows},
                                             {"cols", row.cols},
                                             {"exponent", row.exponent},
                                             {"inexact", row.inexact},
                                             {"error2", row.error2},
                                             {"size2", row.size2}});
  }
  for (const auto& note : notes) note_lines.emplace_back(note);
  return Json(Json::Object{{"architecture", architecture},
                           {"layers", layers},
                           {"hidden", hidden},
                           {"vocab", vocab},
                           {"max_positions", max_positions},
                           {"attention", Json::Object{{"layers", attention.layers},
                                                      {"heads", attention.heads},
                                                      {"kv_heads", attention.kv_heads},
                                                      {"head_dim", attention.head_dim},
                                                      {"rotary_dim", attention.rotary_dim},
                                                      {"rope_theta", attention.rope_theta},
                                                      {"rope_scaling", attention.rope_scaling}}},
                           {"delta_net", Json::Object{{"layers", delta_net.layers},
                                                      {"key_heads", delta_net.key_heads},
                                                      {"value_heads", delta_net.value_heads},
                                                      {"key_dim", delta_net.key_dim},
                                                      {"value_dim", delta_net.value_dim},
                                                      {"conv_kernel", delta_net.conv_kernel}}},
                           {"experts", Json::Object{{"layers", experts.layers},
                                                    {"experts", experts.experts},
                                                    {"per_token", experts.per_token},
                                                    {"intermediate", experts.intermediate},
                                                    {"parameters", experts.parameters},
                                                    {"active_parameters", experts.active_parameters},
                                                    {"active_bytes", experts.active_bytes}}},
                           {"rms_eps", rms_eps},
                           {"tied_head", tied_head},
                           {"quantisation",
                            Json::Object{{"method", quantisation.method},
                                         {"groups", Json::Array(quantisation.groups.begin(),
                                                                quantisation.groups.end())},
                                         {"ignored", Json::Array(quantisation.ignored.begin(),
                                                                 quantisation.ignored.end())}}},
                           {"files", std::move(file_rows)},
                           {"stop_tokens", Json::Array(stop_tokens.begin(), stop_tokens.end())},
                           {"tokenizer", tokenizer},
                           {"tokenizer_size", tokenizer_size},
                           {"chat_template", chat_template},
                           {"backend", backend},
                           {"device", device},
                           {"kernels", kernels},
                           {"profile", profile},
                           {"activations", activations},
                           {"threads", threads},
                           {"formats", std::move(format_rows)},
                           {"packing", packing},
                           {"weight_bytes", weight_bytes},
                           {"mapped_bytes", mapped_bytes},
                           {"constant_bytes", constant_bytes},
                           {"kv_bytes", kv_bytes},
                           {"delta_bytes", delta_bytes},
                           {"scratch_bytes", scratch_bytes},
                           {"count_bytes", count_bytes},
                           {"total_bytes", total_bytes()},
                           {"loading_bytes", loading_bytes},
                           {"free_bytes", free_bytes},
                           {"programs", std::move(program_rows)},
                           {"reencoded", std::move(reencoded_rows)},
                           {"notes", std::move(note_lines)}})
      .dump();
}

std::string StepStats::json() const {
  Json::Object served;
  for (const auto& [op, implementation] : kernels) served.emplace_back(op, implementation);
  return Json(Json::Object{{"steps", steps},
                           {"launches", launches},
                           {"last_launches", last_launches},
                           {"host_to_device_bytes", host_to_device_bytes},
                           {"device_to_host_bytes", device_to_host_bytes},
                           {"collectives", collectives},
                           {"allocations", allocations},
                           {"prefill_tokens", prefill_tokens},
                           {"decode_tokens", decode_tokens},
                           {"prefill_seconds", prefill_seconds},
                           {"decode_seconds", decode_seconds},
                           {"ahead_steps", ahead_steps},
                           {"taken_back_rows", taken_back_rows},
                           {"kernels", std::move(served)}})
      .dump();
}

}  // namespace nibble
