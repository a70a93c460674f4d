// Models of attention and SwiGLU alone on a card: the mirror's tokens and scores, and marks where
// no layer has a recurrent state. Op by op is `nibble parity`'s matter.
#include "tests/cuda/model_fixture.h"

namespace nibble {
namespace {

class CudaDense : public CudaModel, public testing::WithParamInterface<const char*> {
 protected:
  static std::vector<std::int32_t> prompt(std::size_t count) {
    auto ids = some_tokens(count);
    for (std::int32_t& id : ids) id %= 507;  // no added tokens
    return ids;
  }
  static Model load(const std::string& device) {
    return Model::load(test::data_folder() / "archs" / GetParam(), Device::parse(device),
                       options(2));
  }
};
INSTANTIATE_TEST_SUITE_P(All, CudaDense, testing::Values("qwen3", "llama"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(CudaDense, EqualsItsMirror) {
  for (const std::string profile : {"sm70", "sm90", "sm120"}) {
    const Model mirror = load("cpu:mirror=" + profile);
    Session a = mirror.new_session(), b = mirror.new_session();
    const auto answer = read_all(a.generate(prompt(200), answer_of(32)));
    const auto scores = b.score(prompt(200));
    for (const char* more : {"", ",graphs=off"}) {
      const std::string device = "cuda:arch-path=" + profile + more;
      const Model card = load(device);
      Session x = card.new_session(), y = card.new_session();
      EXPECT_EQ(read_all(x.generate(prompt(200), answer_of(32))), answer) << device;
      EXPECT_EQ(y.score(prompt(200)), scores) << device;
    }
  }
}

TEST_P(CudaDense, RewindGoesBack) {
  const Model model = load("cuda");
  EXPECT_EQ(model.info().delta_bytes, 0u);
  Session session = model.new_session(), fresh = model.new_session();
  read_all(session.generate(prompt(100), answer_of(5)));
  read_all(fresh.generate(prompt(100), answer_of(5)));
  const Mark mark = session.mark();
  for (int i = 0; i < 2; ++i) {
    read_all(session.generate(prompt(150), answer_of(20)));
    session.rewind(mark);
  }
  EXPECT_EQ(read_all(session.generate({}, answer_of(30))),
            read_all(fresh.generate({}, answer_of(30))));
}

}  // namespace
}  // namespace nibble
