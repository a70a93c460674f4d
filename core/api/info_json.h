// info_json.h: what a model says of itself, for machines.
#pragma once

#include "core/base/json.h"
#include "nibble/model.h"
#include "nibble/stats.h"

namespace nibble {

Json to_json(const ModelInfo& info);
Json to_json(const StepStats& stats);

}  // namespace nibble
