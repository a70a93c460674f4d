// Device::parse and text.
#include <gtest/gtest.h>

#include "nibble/error.h"
#include "nibble/model.h"
#include "nibble/options.h"

namespace nibble {
namespace {

TEST(Device, ParsesItsForms) {
  Device d = Device::parse("cpu");
  EXPECT_EQ(d.backend, "cpu");
  EXPECT_EQ(d.threads, 0);
  EXPECT_EQ(d.mirror, "");
  EXPECT_EQ(d.kernels, "");
  EXPECT_EQ(d.index, 0);

  d = Device::parse("cuda:1");
  EXPECT_EQ(d.backend, "cuda");
  EXPECT_EQ(d.index, 1);

  d = Device::parse("cpu:mirror=sm90,threads=2");
  EXPECT_EQ(d.backend, "cpu");
  EXPECT_EQ(d.mirror, "sm90");
  EXPECT_EQ(d.threads, 2);

  d = Device::parse("cpu:kernels=portable");
  EXPECT_EQ(d.kernels, "portable");
  EXPECT_TRUE(d.packing);
  EXPECT_FALSE(Device::parse("cpu:packing=off").packing);
  d = Device::parse("cuda:1,arch-path=sm70");
  EXPECT_EQ(d.index, 1);
  EXPECT_EQ(d.arch_path, "sm70");
  EXPECT_FALSE(d.fused_delta.has_value());
  EXPECT_EQ(Device::parse("cuda:fused-delta=on").fused_delta, std::optional(true));
  EXPECT_EQ(Device::parse("cuda:fused-delta=off").fused_delta, std::optional(false));
  EXPECT_FALSE(d.fused_linears.has_value());
  EXPECT_EQ(Device::parse("cuda:fused-linears=on").fused_linears, std::optional(true));
  EXPECT_EQ(Device::parse("cuda:fused-linears=off").fused_linears, std::optional(false));
  EXPECT_FALSE(d.fused_add_norm.has_value() || d.fused_gate.has_value());
  EXPECT_EQ(Device::parse("cpu:fused-add-norm=on").fused_add_norm, std::optional(true));
  EXPECT_EQ(Device::parse("cuda:fused-add-norm=off").fused_add_norm, std::optional(false));
  EXPECT_EQ(Device::parse("cpu:fused-gate=on").fused_gate, std::optional(true));
  EXPECT_EQ(Device::parse("cuda:fused-gate=off").fused_gate, std::optional(false));
  d = Device::parse("cuda:3,threads=4");
  EXPECT_EQ(d.arch_path, "");
  EXPECT_EQ(d.index, 3);
  EXPECT_EQ(d.threads, 4);
}

TEST(Device, TextIsWhatParseTakes) {
  for (const char* text : {"cpu", "cuda", "cuda:1", "cpu:mirror=sm90", "cpu:mirror=sm90,threads=2",
                           "cpu:mirror=sm90,threads=2,kernels=avx2", "cpu:kernels=portable", "cpu:profile=bf16", "cpu:profile=bf16,kernels=amx",
                           "cuda:2,threads=3", "cuda:arch-path=sm120", "cuda:1,arch-path=sm70,graphs=off",
                           "cpu:fused-pack=off", "cpu:packing=off,kernels=avx2", "cuda:1,graphs=off,fused-pack=on",
                           "cuda:fused-swiglu=on", "cuda:fused-pack=off,fused-swiglu=off", "cuda:fused-delta=on",
                           "cuda:1,fused-pack=on,fused-swiglu=on,fused-delta=off,fused-linears=off,fused-add-norm=on,fused-gate=off",
                           "cpu:fused-add-norm=off", "cpu:fused-gate=on"}) {
    EXPECT_EQ(Device::parse(text).text(), text);
  }
  EXPECT_EQ(Device::parse("cpu:threads=0").text(), "cpu");
  EXPECT_EQ(Device::parse("cuda:0").text(), "cuda");
  EXPECT_EQ(Device::parse("cpu:packing=on").text(), "cpu");
}

TEST(Device, RefusesOtherForms) {
  for (const char* text : {"", ":", ":1", "cpu:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda:1x", "cuda:99999999999",
                           "cpu:mirror=", "cpu:mirror", "cuda:arch-path=", "cuda:arch-path", "cuda:arch_path=sm70",
                           "cpu:=sm90", "cpu:threads=x", "cpu:threads=-2",
                           "cpu:threads=2,", "cpu:,threads=2", "cpu:threads=2,,mirror=sm90",
                           "cpu:colour=blue", "cpu:fused-pack", "cpu:fused-pack=", "cpu:fused-pack=yes",
                           "cuda:fused-swiglu", "cuda:fused-swiglu=", "cuda:fused-swiglu=1",
                           "cuda:fused-delta", "cuda:fused-delta=", "cuda:fused-delta=yes", "cuda:fused_delta=on",
                           "cuda:fused-delta=on,fused-delta=on", "cuda:fused-add-norm", "cuda:fused-add-norm=1",
                           "cuda:fused-gate=", "cuda:fused-gate=yes", "cuda:fused_gate=on",
                           "cpu:packing", "cpu:packing=", "cpu:packing=no", "cpu:packing=off,packing=off",
                           "cpu:threads= 2", "cuda:+1", "cpu:threads=2=3"}) {
    try {
      Device::parse(text);
      ADD_FAILURE() << "accepted \"" << text << "\"";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("\"" + std::string(text) + "\""), std::string::npos) << e.what();
    }
  }
}

TEST(Device, AnErrorNamesWhatItFound) {
  try {
    Device::parse("cpu:threads=2,colour=blue");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("found \"colour=blue\" in"), std::string::npos) << e.what();
  }
}

TEST(Device, AnErrorShortensWhatItWasGiven) {
  const std::string word(100'000, 'w');
  for (const std::string& text : {word + ":", word + ":" + word, "cpu:" + word, "cpu:threads=" + word}) {
    try {
      Device::parse(text);
      FAIL();
    } catch (const Error& e) {
      EXPECT_LT(std::string(e.what()).size(), 500u);
    }
  }
  try {  // a name may be anything until a backend is looked for
    Model::synthetic({"tiny"}, Device::parse(word));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::no_device);
    EXPECT_LT(std::string(e.what()).size(), 500u);
    EXPECT_NE(std::string(e.what()).find("no backend is called \"www"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace nibble
