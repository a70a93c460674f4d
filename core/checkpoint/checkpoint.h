// checkpoint.h: the tensors of a model folder.
//
// Either model.safetensors.index.json, whose weight_map names a shard for each tensor, or, without
// an index, one model.safetensors. Shards lie in the folder itself. A tensor of a shard that the
// index does not place there is an error, files that it does not name are not looked at.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/tensor_source.h"

namespace nibble {

class Checkpoint final : public TensorSource {
 public:
  // Throws Error(not_found) when the folder or a shard is absent, Error(bad_file) otherwise.
  explicit Checkpoint(const std::filesystem::path& folder);

  const TensorInfo* find(std::string_view name) const override {
    return index_.find(tensors_, name);
  }
  std::span<const TensorInfo> tensors() const override { return tensors_; }  // shard by shard
  bool has(std::string_view scope) const override { return index_.has(tensors_, scope); }
  std::string describe() const override { return folder_.string(); }
  std::shared_ptr<const void> owner(const TensorInfo& tensor) const override;
  std::string file_of(const TensorInfo& tensor) const override;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  struct Shard {
    std::filesystem::path path;
    std::shared_ptr<const void> owner;
    std::size_t first = 0;  // its tensors begin here
  };
  const Shard& shard_of(const TensorInfo& tensor) const;
  void open_single(const std::filesystem::path& path);
  void open_index(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<Shard> shards_;
  std::vector<TensorInfo> tensors_;
  NameIndex index_;
};

// weight_map as (shard, names of its tensors), shards in the order in which the index first names
// them. Throws Error(bad_file) for shard names that are no plain file names ending in .safetensors.
struct ShardNames {
  std::string shard;
  std::vector<std::string> tensors;
};
std::vector<ShardNames> read_shard_index(std::string_view text, const std::string& source);

}  // namespace nibble
