// nibble.hpp: the whole C++ API. Only the standard library is included.
//
//   auto model   = nibble::Model::load("checkpoint");
//   auto session = model.new_session();
//   auto prompt  = model.tokenizer().encode("The capital of France is");
//   for (const nibble::Piece& piece : session.generate(prompt)) std::cout << piece.text << std::flush;
#pragma once

#include "nibble/engine.h"
#include "nibble/error.h"
#include "nibble/model.h"
#include "nibble/op_bench.h"
#include "nibble/options.h"
#include "nibble/parity.h"
#include "nibble/session.h"
#include "nibble/stats.h"
#include "nibble/tokenizer.h"
#include "nibble/version.h"
