#include "core/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/checkpoint/checkpoint.h"
#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::complaint;
using test::TemporaryFolder;
using test::TensorList;

// A file from a header and bytes of data.
SafetensorsFile from(const std::string& header, std::size_t data, std::int64_t lie = 0) {
  auto bytes = std::make_shared<std::vector<std::byte>>(8 + header.size() + data);
  const std::uint64_t length = header.size() + static_cast<std::uint64_t>(lie);
  std::memcpy(bytes->data(), &length, 8);
  std::memcpy(bytes->data() + 8, header.data(), header.size());
  return SafetensorsFile(*bytes, "f", bytes);
}

std::string refusal(const std::string& header, std::size_t data, std::int64_t lie = 0) {
  return complaint([&] { from(header, data, lie); }, ErrorCode::bad_file);
}

TEST(Safetensors, SaysWhatIsWrong) {
  EXPECT_EQ(
      refusal("{}", 0, 1),
      "[safetensors] f: header length 3 reaches beyond the end of the file (10 bytes), which is "
      "truncated or no safetensors file");
  EXPECT_EQ(
      refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7),
      "[safetensors] f: header: tensor \"a\": data_offsets [0, 8] end beyond the data: the file "
      "is truncated, it holds 7 bytes of data");
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                    R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                    3),
            "[safetensors] f: header: tensor \"b\": data_offsets begin at 1, the tensors before it "
            "end at 2: overlap");
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
            "[safetensors] f: header: tensor \"a\": data_offsets begin at 1, the tensors before it "
            "end at 0: gap");
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,8]}})", 8),
            "[safetensors] f: header: tensor \"a\": data_offsets [0, 8] hold 8 bytes, F32 [2, 3] "
            "needs 24");
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8),
            "[safetensors] f: header: tensor \"a\": unknown dtype \"F33\"");
  EXPECT_EQ(refusal(R"({"a\u0001":3})", 0),
            "[safetensors] f: header: tensor \"a\\x01\": expected an object, found integer");
}

TEST(Safetensors, AFileThatDoesNotExist) {
  EXPECT_EQ(complaint([] { SafetensorsFile("/nonexistent/x.safetensors"); }, ErrorCode::not_found),
            "/nonexistent/x.safetensors: cannot open: No such file or directory");
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryFolder folder;
  TensorList list;
  list.add("b", DType::u8, {3}, std::vector<std::uint8_t>{1, 2, 3})
      .add("a", DType::f32, {2, 1}, std::vector<float>{1.5f, -2})
      .add("s", DType::bf16, {}, std::vector<std::uint16_t>{0x3f80})
      .add("none", DType::f32, {0, 7}, std::vector<float>{});
  write_safetensors(folder / "x.safetensors", list.list(), {{"format", "pt"}, {"q", "\"\n"}});
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(file.metadata()->at("q"), "\"\n");
  ASSERT_EQ(file.tensors().size(), 4u);
  for (const TensorInfo& t : list.list()) {
    const TensorInfo* found = file.find(t.name);
    ASSERT_NE(found, nullptr) << t.name;
    EXPECT_EQ(found->dtype, t.dtype);
    EXPECT_EQ(found->shape, t.shape);
    EXPECT_TRUE(
        std::equal(found->bytes.begin(), found->bytes.end(), t.bytes.begin(), t.bytes.end()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found->bytes.data()) %
                  static_cast<std::uintptr_t>(dtype_bits(t.dtype) / 8),
              0u);
  }
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(folder / "x.safetensors.part"));
}

TEST(Safetensors, WriterRefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const auto refused = [&](const TensorList& list) {
    return complaint([&] { write_safetensors(path, list.list()); }, ErrorCode::invalid_argument);
  };
  EXPECT_EQ(refused(TensorList().add("a", DType::f32, {3}, std::vector<float>{1})),
            "[write_safetensors] tensor \"a\": F32 [3] does not fit its 4 bytes");
  EXPECT_EQ(refused(TensorList().add_zeros("a", DType::u8, {1}).add_zeros("a", DType::u8, {1})),
            "[write_safetensors] tensor \"a\": name given twice");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_NE(
      complaint([] { write_safetensors("/nonexistent/x.safetensors", {}); }, ErrorCode::bad_file)
          .find("cannot write"),
      std::string::npos);
}

TEST(CheckpointFolder, SingleFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(complaint([&] { Checkpoint{folder.path()}; }, ErrorCode::not_found),
            "[checkpoint] " + folder.path().string() +
                ": expected model.safetensors.index.json or model.safetensors, found neither");
  EXPECT_NE(complaint([&] { Checkpoint(folder / "absent"); }, ErrorCode::not_found), "");
  write_safetensors(folder / "model.safetensors",
                    TensorList().add_zeros("a.weight", DType::u8, {4}).list());
  const Checkpoint checkpoint(folder.path());
  ASSERT_NE(checkpoint.find("a.weight"), nullptr);
  EXPECT_EQ(checkpoint.file_of(*checkpoint.find("a.weight")),
            (folder / "model.safetensors").string());
  EXPECT_TRUE(checkpoint.has("a"));
  EXPECT_FALSE(checkpoint.has("a.w"));
}

TEST(CheckpointFolder, ShardsKeepTheirBytesAndNames) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors",
                    TensorList()
                        .add("b", DType::u8, {1}, std::vector<std::uint8_t>{7})
                        .list());
  write_safetensors(folder / "model_mtp.safetensors",
                    TensorList().add("a", DType::u8, {1}, std::vector<std::uint8_t>{9}).list());
  std::ofstream(folder / "model.safetensors.index.json")
      << R"({"weight_map": {"b": "model.safetensors", "a": "model_mtp.safetensors"}})";
  std::shared_ptr<const void> owner;
  Bytes bytes;
  {
    const Checkpoint checkpoint(folder.path());  // the index wins over model.safetensors alone
    EXPECT_EQ(checkpoint.tensors().size(), 2u);
    EXPECT_EQ(checkpoint.file_of(*checkpoint.find("a")),
              (folder / "model_mtp.safetensors").string());
    EXPECT_NE(checkpoint.owner(*checkpoint.find("a")), checkpoint.owner(*checkpoint.find("b")));
    bytes = checkpoint.find("a")->bytes;
    owner = checkpoint.owner(*checkpoint.find("a"));
  }
  EXPECT_EQ(static_cast<int>(bytes[0]), 9);  // still mapped
  std::filesystem::remove(folder / "model_mtp.safetensors");
  EXPECT_EQ(complaint([&] { Checkpoint{folder.path()}; }, ErrorCode::not_found),
            "[checkpoint] " + (folder / "model_mtp.safetensors").string() +
                ": shard named by model.safetensors.index.json for \"a\" does not exist");
}

TEST(CheckpointFolder, EveryTensorOfAShardIsPlacedByTheIndex) {
  const TemporaryFolder folder;
  const auto refusal = [&](const char* second) {
    write_safetensors(folder / "1.safetensors",
                      TensorList().add_zeros("a", DType::u8, {1}).list());
    write_safetensors(
        folder / "2.safetensors",
        TensorList().add_zeros("b", DType::u8, {1}).add_zeros(second, DType::u8, {1}).list());
    std::ofstream(folder / "model.safetensors.index.json")
        << R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})";
    return complaint([&] { Checkpoint{folder.path()}; }, ErrorCode::bad_file);
  };
  const std::string who = "[checkpoint] " + (folder / "2.safetensors").string() + ": tensor ";
  const std::string expected =
      ": expected only tensors that model.safetensors.index.json places here, found that it ";
  EXPECT_EQ(refusal("stray"), who + "\"stray\"" + expected + "does not name this one");
  EXPECT_EQ(refusal("a"), who + "\"a\"" + expected + "places this one in 1.safetensors");
}

}  // namespace
}  // namespace nibble
