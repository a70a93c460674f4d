#include "core/checkpoint/checkpoint.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/files.h"
#include "core/base/mapped_file.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/safetensors.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::size_t kMostIndex = 100'000'000;

// Nothing if the name is a plain file name of a shard, else what is wrong with it.
const char* shard_name_problem(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.find('\0') != std::string_view::npos) return "holds a NUL";
  if (name.front() == '/') return "is an absolute path";
  if (name.find_first_of("/\\") != std::string_view::npos) {
    return "is a path; shards lie in the folder itself";
  }
  if (!name.ends_with(".safetensors")) return "does not end in .safetensors";
  if (name.size() > 255) return "is longer than a file name can be";
  return nullptr;
}

}  // namespace

std::vector<ShardNames> read_shard_index(std::string_view text, const std::string& source) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::bad_file, "[checkpoint] " + source + ": " + what);
  };
  const Json root = parse_json_object(text, "[checkpoint] " + source);
  const Json* map = root.find("weight_map");
  if (map == nullptr) fail("weight_map: missing");
  if (!map->is_object()) {
    fail(std::string("weight_map: expected an object, found ") + map->type_name());
  }
  if (map->as_object().empty()) fail("weight_map is empty: no tensor is named");

  std::vector<ShardNames> shards;
  std::unordered_map<std::string_view, std::size_t> place;
  for (const auto& [tensor, shard] : map->as_object()) {
    const std::string who = "weight_map: " + show_name(tensor) + ": ";
    if (!shard.is_string()) {
      fail(who + "expected the name of a shard, found " + shard.type_name());
    }
    const std::string& name = shard.as_string();
    if (const char* problem = shard_name_problem(name)) {
      fail(who + "shard name " + show_name(name) + " " + problem);
    }
    const auto [at, added] = place.emplace(name, shards.size());
    if (added) shards.push_back({name, {}});
    shards[at->second].tensors.push_back(tensor);
  }
  return shards;
}

Checkpoint::Checkpoint(const std::filesystem::path& folder) : folder_(folder) {
  expect_folder(folder, "[checkpoint] ", "a checkpoint");
  const auto index = folder / "model.safetensors.index.json";
  const auto single = folder / "model.safetensors";
  // The index first: it may name model.safetensors itself beside further files.
  if (file_present(index)) {
    open_index(index);
  } else if (file_present(single)) {
    open_single(single);
  } else {
    throw Error(ErrorCode::not_found, "[checkpoint] " + folder.string() +
                                          ": expected model.safetensors.index.json or "
                                          "model.safetensors, found neither");
  }
  index_ = NameIndex(tensors_);
}

void Checkpoint::open_single(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  tensors_ = file.tensors();
  shards_.push_back({path, file.owner(), 0});
}

void Checkpoint::open_index(const std::filesystem::path& path) {
  std::vector<ShardNames> shards;
  {
    const MappedFile file(path);
    if (file.bytes().size() > kMostIndex) {
      throw Error(ErrorCode::bad_file, "[checkpoint] " + path.string() + ": the index has " +
                                           std::to_string(file.bytes().size()) +
                                           " bytes, more than " + std::to_string(kMostIndex));
    }
    shards = read_shard_index(
        {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string());
  }
  for (const ShardNames& shard : shards) {
    const auto shard_path = folder_ / shard.shard;
    if (!file_present(shard_path)) {
      throw Error(ErrorCode::not_found, "[checkpoint] " + shard_path.string() +
                                            ": shard named by " + path.filename().string() +
                                            " for " + show_name(shard.tensors.front()) +
                                            " does not exist");
    }
    const SafetensorsFile file(shard_path);
    const std::unordered_set<std::string_view> wanted(shard.tensors.begin(), shard.tensors.end());
    shards_.push_back({shard_path, file.owner(), tensors_.size()});
    for (const TensorInfo& t : file.tensors()) {
      if (wanted.contains(t.name)) {
        tensors_.push_back(t);
        continue;
      }
      // Left out silently it would be a layer that is not there, or the wrong one of two copies.
      const auto home = std::find_if(shards.begin(), shards.end(), [&](const ShardNames& other) {
        return std::find(other.tensors.begin(), other.tensors.end(), t.name) != other.tensors.end();
      });
      throw Error(ErrorCode::bad_file,
                  "[checkpoint] " + shard_path.string() + ": tensor " + show_name(t.name) +
                      ": expected only tensors that " + path.filename().string() +
                      " places here, found that it " +
                      (home == shards.end() ? "does not name this one"
                                            : "places this one in " + home->shard));
    }
    if (tensors_.size() - shards_.back().first == wanted.size()) continue;
    for (const std::string& name : shard.tensors) {
      if (file.find(name) == nullptr) {
        throw Error(ErrorCode::bad_file, "[checkpoint] " + path.string() +
                                             ": weight_map: " + show_name(name) + ": expected in " +
                                             shard.shard + ", which lacks it");
      }
    }
  }
}

const Checkpoint::Shard& Checkpoint::shard_of(const TensorInfo& tensor) const {
  const auto at = static_cast<std::size_t>(&tensor - tensors_.data());
  const auto next = std::upper_bound(
      shards_.begin(), shards_.end(), at,
      [](std::size_t position, const Shard& shard) { return position < shard.first; });
  return *std::prev(next);
}

std::shared_ptr<const void> Checkpoint::owner(const TensorInfo& tensor) const {
  return shard_of(tensor).owner;
}

std::string Checkpoint::file_of(const TensorInfo& tensor) const {
  return shard_of(tensor).path.string();
}

}  // namespace nibble
