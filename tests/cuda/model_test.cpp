// The shipped checkpoint on a card: text, graphs, counters, sequences that join and leave, state that is
// taken back. Bits against the mirror are `nibble parity`'s and tests/parity's matter.
#include "tests/cuda/model_fixture.h"

namespace nibble {
namespace {

TEST_F(CudaModel, WritesTheText) {
  const Model model = load("cuda");
  EXPECT_EQ(model.info().backend, "cuda");
  EXPECT_EQ(model.info().profile, "sm90");
  Session session = model.new_session();
  std::string text;
  for (const Piece& p : session.generate(model.tokenizer().encode("The capital of France is"), answer_of(16))) {
    text += p.text;
  }
  EXPECT_EQ(text.substr(0, 42), " Paris.\nThe capital of Germany is Berlin.\n");
}

TEST_F(CudaModel, GraphsAndRepetitionsChangeNoBit) {
  const auto prompt = some_tokens(300);
  std::vector<std::vector<std::int32_t>> answers;
  std::vector<std::vector<double>> scores;
  for (const char* device : {"cuda", "cuda", "cuda:graphs=off"}) {
    const Model model = load(device, 2);
    Session a = model.new_session(), b = model.new_session();
    answers.push_back(read_all(a.generate(prompt, answer_of(64))));
    scores.push_back(b.score(prompt));
  }
  for (std::size_t i = 1; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i], answers[0]);
    EXPECT_EQ(scores[i], scores[0]);
  }
}

TEST_F(CudaModel, FusedPacksChangeNoBit) {
  const auto prompt = some_tokens(300);
  for (const std::string path : {"sm90", "sm120"}) {
    std::vector<std::vector<std::int32_t>> answers;
    std::vector<std::vector<double>> scores;
    std::vector<std::uint64_t> launches;
    for (const char* more : {",fused-pack=off", ",fused-pack=on", ",graphs=off,fused-pack=off", ",graphs=off"}) {
      LoadOptions how = options(2);
      how.activations = Activations::declared;
      const Model model = Model::load(checkpoint(), Device::parse("cuda:arch-path=" + path + more), how);
      Session a = model.new_session(), b = model.new_session();
      answers.push_back(read_all(a.generate(prompt, answer_of(32))));
      launches.push_back(model.stats().last_launches);
      scores.push_back(b.score(prompt));
      EXPECT_EQ(answers.back(), answers[0]) << path << more;
      EXPECT_EQ(scores.back(), scores[0]) << path << more;
    }
    EXPECT_LT(launches[3], launches[2]) << path;
  }
}

// Mode a8 on the FP8 unit: with graphs, fused packs and another batch, and the mirror.
TEST_F(CudaModel, A8EqualsItsMirror) {
  const auto prompt = some_tokens(300);
  std::vector<std::vector<std::int32_t>> answers;
  std::vector<std::vector<double>> scores;
  for (const char* device : {"cuda:arch-path=sm90", "cuda:arch-path=sm90,graphs=off", "cuda:arch-path=sm90,fused-pack=off",
                             "cpu:mirror=sm90"}) {
    LoadOptions how = options(2);
    how.activations = Activations::a8;
    const Model model = Model::load(checkpoint(), Device::parse(device), how);
    Session a = model.new_session(), b = model.new_session();
    answers.push_back(read_all(a.generate(prompt, answer_of(32))));
    scores.push_back(b.score(prompt));
    EXPECT_EQ(answers.back(), answers[0]) << device;
    EXPECT_EQ(scores.back(), scores[0]) << device;
  }
}

TEST_F(CudaModel, RowsOfF16HaveNoFusedPacks) {
  EXPECT_THROW(load("cuda:arch-path=sm70,fused-pack=on"), Error);
}

TEST_F(CudaModel, FusedSwiGluChangesNoBit) {
  const auto prompt = some_tokens(300);
  for (const std::string path : {"sm90", "sm120"}) {
    for (const Activations activations : {Activations::a16, Activations::declared}) {
      std::vector<std::vector<std::int32_t>> answers;
      std::vector<std::vector<double>> scores;
      std::vector<std::uint64_t> launches, scratch;
      for (const char* more :
           {",fused-swiglu=off", "", ",graphs=off,fused-swiglu=off", ",graphs=off,fused-swiglu=on"}) {
        LoadOptions how = options(2);
        how.activations = activations;
        const Model model = Model::load(checkpoint(), Device::parse("cuda:fused-pack=off,fused-linears=off,arch-path=" + path + more), how);
        Session a = model.new_session(), b = model.new_session();
        answers.push_back(read_all(a.generate(prompt, answer_of(32))));
        launches.push_back(model.stats().last_launches);
        scratch.push_back(model.info().scratch_bytes);
        scores.push_back(b.score(prompt));
        EXPECT_EQ(answers.back(), answers[0]) << path << more;
        EXPECT_EQ(scores.back(), scores[0]) << path << more;
        const StepStats stats = model.stats();
        const bool serves = std::any_of(stats.kernels.begin(), stats.kernels.end(), [](const auto& k) {
          return k.first.rfind("linear swiglu ", 0) == 0;
        });
        const bool noted = std::any_of(model.info().notes.begin(), model.info().notes.end(), [](const std::string& n) {
          return n.find("the FP4 unit's kernels have no SwiGLU behind their sums") != std::string::npos;
        });
        const bool on = std::string(more).find("swiglu=off") == std::string::npos;
        const bool fp4 = path == "sm120" && activations == Activations::declared;
        EXPECT_EQ(serves, on && !fp4) << path << more;
        EXPECT_EQ(noted, on && fp4) << path << more;
      }
      // Three launches of an MLP become one.
      if (path == "sm90") {
        EXPECT_EQ(launches[3] + 2 * 8, launches[2]);
      }
      EXPECT_LE(scratch[1], scratch[0]);
    }
  }
}

TEST_F(CudaModel, RowsOfF16HaveNoFusedSwiGlu) {
  EXPECT_THROW(load("cuda:arch-path=sm70,fused-swiglu=on"), Error);
}

TEST_F(CudaModel, FusedDeltaChangesNoBit) {
  const auto prompt = some_tokens(300);
  for (const std::string path : {"sm90", "sm120"}) {
    // Packed norms stay behind the fused op, others are a part of it.
    for (const std::string packs : {"off", "on"}) {
      std::vector<std::vector<std::int32_t>> answers;
      std::vector<std::vector<double>> scores;
      for (const std::string more : {",fused-delta=off", ",fused-delta=on", ",graphs=off,fused-delta=on"}) {
        LoadOptions how = options(2);
        how.activations = Activations::declared;
        const Model model =
            Model::load(checkpoint(), Device::parse("cuda:fused-pack=" + packs + ",arch-path=" + path + more), how);
        Session a = model.new_session(), b = model.new_session();
        answers.push_back(read_all(a.generate(prompt, answer_of(32))));
        scores.push_back(b.score(prompt));
        EXPECT_EQ(answers.back(), answers[0]) << path << more;
        EXPECT_EQ(scores.back(), scores[0]) << path << more;
        const auto& notes = model.info().notes;
        const bool noted = std::any_of(notes.begin(), notes.end(), [](const std::string& n) {
          return n.rfind("fused-delta: ", 0) == 0 && n.find("its output is packed") != std::string::npos;
        });
        EXPECT_EQ(noted, packs == "on" && more.find("delta=on") != std::string::npos) << path << more;
      }
    }
  }
}

TEST_F(CudaModel, RowsOfF16HaveNoFusedDelta) {
  EXPECT_THROW(load("cuda:arch-path=sm70,fused-delta=on"), Error);
}

// Whether any linear layer is served by wgmma, whose kernels alone take several weights.
bool has_joining_kernels(const std::vector<std::pair<std::string, std::string>>& kernels) {
  return std::any_of(kernels.begin(), kernels.end(), [](const auto& k) {
    return k.first.rfind("linear ", 0) == 0 && k.second.rfind("wgmma", 0) == 0;
  });
}

TEST_F(CudaModel, JoinedLinearsChangeNoBit) {
  const auto prompt = some_tokens(300);
  for (const Activations activations : {Activations::a16, Activations::declared, Activations::a8}) {
    std::vector<std::vector<std::int32_t>> answers;
    std::vector<std::vector<double>> scores;
    std::vector<std::uint64_t> launches;
    for (const std::string more : {",fused-linears=off", "", ",graphs=off,fused-linears=on"}) {
      LoadOptions how = options(2);
      how.activations = activations;
      const Model model = Model::load(checkpoint(), Device::parse("cuda:arch-path=sm90" + more), how);
      Session a = model.new_session(), b = model.new_session();
      answers.push_back(read_all(a.generate(prompt, answer_of(32))));
      scores.push_back(b.score(prompt));
      launches.push_back(model.stats().last_launches);
      EXPECT_EQ(answers.back(), answers[0]) << more;
      EXPECT_EQ(scores.back(), scores[0]) << more;
      const auto kernels = model.stats().kernels;
      const bool named = std::any_of(kernels.begin(), kernels.end(), [](const auto& k) {
        return k.second.find(" layers at once") != std::string::npos;
      });
      EXPECT_EQ(named, more != ",fused-linears=off" && has_joining_kernels(kernels)) << more;
    }
    EXPECT_LE(launches[1], launches[0]);
    EXPECT_EQ(launches[1], launches[2]);
  }
}

TEST_F(CudaModel, OtherPathsHaveNoJoinedLinears) {
  for (const std::string path : {"sm70", "sm120"}) EXPECT_THROW(load(("cuda:arch-path=" + path + ",fused-linears=on").c_str()), Error);
}

// The residual sum with its norm, packed and not, and attention with its gate.
TEST_F(CudaModel, FusedAddNormAndGateChangeNoBit) {
  const auto prompt = some_tokens(300);
  for (const std::string path : {"sm90", "sm120"}) {
    for (const std::string packs : {"off", "on"}) {
      std::vector<std::vector<std::int32_t>> answers;
      std::vector<std::vector<double>> scores;
      std::vector<std::uint64_t> launches;
      for (const std::string more : {",fused-add-norm=off,fused-gate=off", ",fused-add-norm=on,fused-gate=off", ",fused-add-norm=off,fused-gate=on",
                                     "", ",graphs=off"}) {
        LoadOptions how = options(2);
        how.activations = Activations::declared;
        const Model model = Model::load(checkpoint(), Device::parse("cuda:fused-pack=" + packs + ",arch-path=" + path + more), how);
        Session a = model.new_session(), b = model.new_session();
        answers.push_back(read_all(a.generate(prompt, answer_of(32))));
        launches.push_back(model.stats().last_launches);
        scores.push_back(b.score(prompt));
        EXPECT_EQ(answers.back(), answers[0]) << path << packs << more;
        EXPECT_EQ(scores.back(), scores[0]) << path << packs << more;
      }
      EXPECT_EQ(launches[2] + 2, launches[0]) << "two layers have attention";
      EXPECT_LE(launches[1], launches[0]);
      EXPECT_EQ(launches[3] + 2, launches[1]);
    }
  }
}

TEST_F(CudaModel, RowsOfF16HaveNoFusedGateButFusedSums) {
  EXPECT_THROW(load("cuda:arch-path=sm70,fused-gate=on"), Error);
  const auto prompt = some_tokens(60);
  std::vector<std::vector<std::int32_t>> answers;
  for (const char* more : {"off", "on"}) {
    const Model model = load((std::string("cuda:arch-path=sm70,fused-add-norm=") + more).c_str());
    Session session = model.new_session();
    answers.push_back(read_all(session.generate(prompt, answer_of(8))));
  }
  EXPECT_EQ(answers[1], answers[0]);
}

TEST_F(CudaModel, MirrorScoresAndSamplesTheSame) {
  const auto prompt = some_tokens(200);
  Sampling how = answer_of(48);
  how.temperature = 0.9f;
  how.top_p = 0.95f;
  how.repetition_penalty = 1.1f;
  how.seed = 11;
  std::vector<std::vector<std::int32_t>> answers;
  std::vector<std::vector<double>> scores;
  for (const char* device : {"cuda", "cpu:mirror=sm90"}) {
    const Model model = load(device, 2);
    Session a = model.new_session(), b = model.new_session();
    answers.push_back(read_all(a.generate(prompt, how)));
    scores.push_back(b.score(prompt));
  }
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(scores[1], scores[0]);
}

TEST_F(CudaModel, LaunchesDoNotGrowWithTheBatch) {
  const Model model = load("cuda");
  std::vector<std::uint64_t> launches;
  for (const std::size_t rows : {1u, 5u, 2048u}) {
    Session session = model.new_session();
    const auto prompt = some_tokens(rows);
    TokenStream stream = session.generate(prompt, answer_of(1));
    Piece piece;
    ASSERT_TRUE(stream.next(piece));
    launches.push_back(model.stats().last_launches);
  }
  EXPECT_GT(launches[0], 0u);
  EXPECT_EQ(launches[1], launches[0]);
  EXPECT_EQ(launches[2], launches[0]);
}

TEST_F(CudaModel, StepsMoveLittleAndAllocateNothing) {
  const Model model = load("cuda", 8);
  std::vector<Session> sessions;
  std::vector<TokenStream> streams;
  for (std::uint32_t i = 0; i < 8; ++i) {
    sessions.push_back(model.new_session());
    streams.push_back(sessions.back().generate(some_tokens(100 + i, i), answer_of(64)));
  }
  Piece piece;
  for (int round = 0; round < 4; ++round) {
    for (TokenStream& s : streams) ASSERT_TRUE(s.next(piece));
  }
  std::size_t free_before = 0, free_after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  const StepStats before = model.stats();
  for (int round = 0; round < 32; ++round) {
    for (TokenStream& s : streams) ASSERT_TRUE(s.next(piece));
  }
  const StepStats after = model.stats();
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_after, free_before);
  const std::uint64_t steps = after.steps - before.steps;
  ASSERT_GE(steps, 31u);
  EXPECT_LE(steps, 33u);  // eight sequences decode together
  EXPECT_LT((after.host_to_device_bytes - before.host_to_device_bytes) / steps, 16u * 1024);
  EXPECT_LT((after.device_to_host_bytes - before.device_to_host_bytes) / steps, 16u * 1024);
}

TEST_F(CudaModel, AChunkSendsTokensAndItsDescriptionOnly) {
  const Model model = load("cuda");
  Session session = model.new_session();
  const StepStats before = model.stats();
  read_all(session.generate(some_tokens(2048), answer_of(1)));
  const StepStats after = model.stats();
  // a token and its range's number each; the rest is pages and one range
  EXPECT_LT(after.host_to_device_bytes - before.host_to_device_bytes, 2048u * 8 + 4096);
  EXPECT_LT(after.device_to_host_bytes - before.device_to_host_bytes, 64u);
}

TEST_F(CudaModel, SequencesTogetherAreEachAlone) {
  constexpr std::uint32_t kCount = 8;
  const auto prompt_of = [](std::uint32_t i) { return some_tokens(3 + 37 * i, i + 1); };
  const auto length_of = [](std::uint32_t i) { return static_cast<int>(5 + 6 * i); };
  const Model model = load("cuda", kCount);
  std::vector<std::vector<std::int32_t>> alone(kCount), together(kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    Session session = model.new_session();
    alone[i] = read_all(session.generate(prompt_of(i), answer_of(length_of(i))));
  }
  std::vector<Session> sessions;
  std::vector<TokenStream> streams;
  Piece piece;
  for (std::uint32_t i = 0; i < kCount; ++i) {  // each joins a step later than the one before
    sessions.push_back(model.new_session());
    streams.push_back(sessions.back().generate(prompt_of(i), answer_of(length_of(i))));
    for (std::uint32_t j = 0; j <= i; ++j) {
      if (streams[j].next(piece)) together[j].push_back(piece.token);
    }
  }
  for (bool more = true; more;) {
    more = false;
    for (std::uint32_t i = 0; i < kCount; ++i) {
      if (!streams[i].next(piece)) continue;
      together[i].push_back(piece.token);
      more = true;
    }
  }
  EXPECT_EQ(together, alone);
}

TEST_F(CudaModel, AMarkBringsTheStateBack) {
  const Model model = load("cuda");
  Session session = model.new_session();
  read_all(session.generate(some_tokens(150), answer_of(7)));
  const Mark mark = session.mark();
  const auto next = some_tokens(20, 99);
  const auto first = read_all(session.generate(next, answer_of(24)));
  session.rewind(mark);
  EXPECT_EQ(read_all(session.generate(next, answer_of(24))), first);
}

TEST_F(CudaModel, ATraceNamesOpsAndCopies) {
  const Model model = load("cuda");
  Session session = model.new_session();
  read_all(session.generate(some_tokens(64), answer_of(2)));
  try {
    model.start_trace();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;  // only CUPTI itself may be absent
    GTEST_SKIP() << e.what();
  }
  read_all(session.generate(some_tokens(64, 3), answer_of(8)));
  const Trace trace = model.stop_trace();
  std::size_t kernels = 0, named = 0, copies = 0;
  for (const TraceEvent& e : trace.events) {
    EXPECT_LE(e.start_ns, e.end_ns);
    EXPECT_FALSE(e.name.empty());
    EXPECT_EQ(e.name.find("anonymous"), std::string::npos) << e.name;
    kernels += e.kind == TraceEvent::Kind::kernel;
    named += e.kind == TraceEvent::Kind::kernel && !e.op.empty();
    EXPECT_EQ(e.op.empty(), e.op_kind.empty()) << e.name;
    EXPECT_TRUE(e.op.empty() || e.step >= 0) << e.name;
    copies += e.kind == TraceEvent::Kind::copy;
  }
  EXPECT_GT(kernels, 8u * 60);
  EXPECT_GT(named, kernels * 9 / 10);
  EXPECT_GE(copies, 16u);
  EXPECT_GT(trace.busy_share(), 0.0);
  EXPECT_LE(trace.busy_share(), 1.0);
  // The prompt, then tokens; each step has its kernels, its copies and a time of its own.
  ASSERT_GE(trace.steps.size(), 8u);
  for (std::size_t i = 0; i < trace.steps.size(); ++i) {
    EXPECT_EQ(trace.steps[i].prompt, i == 0) << i;
    EXPECT_GE(trace.steps[i].start_ns, i == 0 ? trace.start_ns : trace.steps[i - 1].start_ns);
    const Trace one = trace.of_steps(i, i + 1);
    EXPECT_GT(one.events.size(), 60u) << i;
    EXPECT_EQ(one.events.front().name, "copy to device") << i;
    EXPECT_GT(one.busy_share(), 0.01) << i;
    double linear = 0, all = 0;
    for (const auto& [name, seconds] : one.class_seconds()) {
      all += seconds;
      if (name == "linear") linear = seconds;
    }
    EXPECT_NEAR(all, one.busy_share() * one.seconds(), 1e-9);
    EXPECT_GT(linear, all / 20) << i;
  }
  EXPECT_GE(trace.of_steps(0, trace.steps.size()).busy_share(), trace.busy_share())
      << "without what lies before and behind the steps";
}

// Holds with and without a card.
TEST(CudaRefusals, ACardThatIsNotThere) {
  LoadOptions how;
  how.kv_tokens = 64;
  SyntheticOptions tiny;
  tiny.shape = "tiny";
  try {
    Model::synthetic(tiny, Device::parse("cuda:99"), how);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    const std::string text = e.what();
    if (no_card().empty()) {
      EXPECT_EQ(e.code(), ErrorCode::no_device) << text;
      EXPECT_NE(text.find("card 99: expected 0 to"), std::string::npos) << text;
    } else {
      EXPECT_EQ(e.code(), ErrorCode::no_device) << text;
      EXPECT_NE(text.find("driver"), std::string::npos) << text;
    }
  }
}

TEST_F(CudaModel, MemoryThatIsNotThereIsRefusedBeforeLoading) {
  LoadOptions how;
  how.kv_tokens = std::int64_t{1} << 31;
  how.max_sequences = 64;
  try {
    Model::load(checkpoint(), Device::parse("cuda"), how);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory) << e.what();
    EXPECT_NE(std::string(e.what()).find("KV cache"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace nibble
