// Models with experts on a card: the bits of the mirror of each path, with graphs and without, alone and
// beside others.
#include "tests/cuda/model_fixture.h"

namespace nibble {
namespace {

struct MoeCase {
  const char *folder, *profile;
  Activations activations;
};

class CudaMoe : public CudaModel, public testing::WithParamInterface<MoeCase> {
 protected:
  std::filesystem::path folder() const { return test::data_folder() / "archs" / GetParam().folder; }
  Model load(const std::string& device, int sequences) const {
    LoadOptions how = options(sequences);
    how.activations = GetParam().activations;
    return Model::load(folder(), Device::parse(device), how);
  }
  static std::vector<std::int32_t> prompt(std::size_t count, std::uint32_t seed) {
    auto tokens = some_tokens(count, seed);
    for (std::int32_t& t : tokens) t %= 500;
    return tokens;
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, CudaMoe,
    testing::Values(MoeCase{"qwen3_next", "sm70", Activations::a16}, MoeCase{"qwen3_next", "sm90", Activations::a16},
                    MoeCase{"qwen3_next", "sm120", Activations::a16},
                    MoeCase{"qwen3_5_moe-nvfp4", "sm70", Activations::a16},
                    MoeCase{"qwen3_5_moe-nvfp4", "sm90", Activations::a16},
                    MoeCase{"qwen3_5_moe-nvfp4", "sm120", Activations::a16},
                    MoeCase{"qwen3_5_moe-nvfp4", "sm90", Activations::declared},
                    MoeCase{"qwen3_5_moe-nvfp4", "sm120", Activations::declared}),
    [](const auto& tested) {
      const MoeCase& c = tested.param;
      return std::string(c.folder).substr(0, c.folder[5] == '_' && c.folder[6] == '5' ? 11 : 10) + "_" + c.profile +
             (c.activations == Activations::declared ? "_declared" : "");
    });

TEST_P(CudaMoe, EqualsItsMirror) {
  const auto ids = prompt(300, 7);
  std::vector<std::vector<std::int32_t>> answers;
  std::vector<std::vector<double>> scores;
  const std::string profile = GetParam().profile;
  for (const std::string& device : {"cpu:mirror=" + profile, "cuda:arch-path=" + profile,
                                    "cuda:arch-path=" + profile + ",graphs=off"}) {
    const Model model = load(device, 2);
    Session a = model.new_session(), b = model.new_session();
    answers.push_back(read_all(a.generate(ids, answer_of(32))));
    scores.push_back(b.score(ids));
    EXPECT_EQ(answers.back(), answers[0]) << device;
    EXPECT_EQ(scores.back(), scores[0]) << device;
  }
}

TEST_P(CudaMoe, ASequenceBesideOthersIsTheSequenceAlone) {
  const std::string device = std::string("cuda:arch-path=") + GetParam().profile;
  const Model alone = load(device, 1), together = load(device, 4);
  std::vector<Session> sessions;
  std::vector<TokenStream> streams;
  for (std::uint32_t i = 0; i < 4; ++i) {
    sessions.push_back(together.new_session());
    streams.push_back(sessions.back().generate(prompt(1 + 60 * i, i + 1), answer_of(24)));
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    Session session = alone.new_session();
    EXPECT_EQ(read_all(std::move(streams[i])), read_all(session.generate(prompt(1 + 60 * i, i + 1), answer_of(24)))) << i;
  }
}

}  // namespace
}  // namespace nibble
