#include "tests/models/folder.h"

#include <unistd.h>

#include <fstream>
#include <iterator>

#include "tests/golden/fixture.h"

namespace nibble::test {
namespace fs = std::filesystem;

Folder::Folder(const std::string& of) {
  static int serial = 0;
  path = fs::temp_directory_path() /
         ("nibble-folder-" + std::to_string(::getpid()) + "-" + std::to_string(serial++));
  fs::create_directories(path);
  const fs::path source = data(of);
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "generation_config.json", "chat_template.jinja"}) {
    fs::copy_file(source / name, path / name, fs::copy_options::overwrite_existing);
  }
  config = Json::parse(get("config.json"), "config.json");
  const Checkpoint checkpoint(source);
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (t.name.starts_with("mtp.") || t.name.find("visual") != std::string::npos) continue;
    tensors[t.name] = {t.dtype, t.shape,
                       std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size())};
  }
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

void Folder::rename(const std::string& from, const std::string& to) {
  std::map<std::string, Entry> renamed;
  for (auto& [name, entry] : tensors) {
    renamed[name.starts_with(from) ? to + name.substr(from.size()) : name] = std::move(entry);
  }
  tensors = std::move(renamed);
}

void Folder::write() const {
  std::vector<TensorInfo> list;
  for (const auto& [name, entry] : tensors) {
    TensorInfo t;
    t.name = name;
    t.dtype = entry.dtype;
    t.shape = entry.shape;
    t.bytes = std::as_bytes(std::span(entry.bytes));
    list.push_back(std::move(t));
  }
  write_safetensors(path / "model.safetensors", list);
  put("config.json", config.dump(1));
}

void Folder::put(const std::string& file, const std::string& text) const {
  std::ofstream(path / file, std::ios::binary) << text;
}

std::string Folder::get(const std::string& file) const {
  std::ifstream in(path / file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace nibble::test
