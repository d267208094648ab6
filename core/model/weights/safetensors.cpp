#include "model/weights/safetensors.h"

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/problems.h"
#include "base/text.h"
#include "model/weights/safetensors_header.h"
#include "model/weights/weight_reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {

namespace fs = std::filesystem;

struct Safetensors::Content {
  struct Shard {
    fs::path path;
    std::shared_ptr<const MappedFile> file;
  };
  fs::path path;
  std::vector<Shard> shards;
  std::vector<TensorView> tensors;
  std::vector<uint32_t> by_name; // places in `tensors`
  std::map<std::string, std::string> metadata;

  void add(const fs::path& file) {
    auto mapped = MappedFile::open(file);
    SafetensorsHeader header = parse_safetensors(mapped->bytes(), file.string());
    shards.push_back({file, std::move(mapped)});
    tensors.insert(tensors.end(), std::make_move_iterator(header.tensors.begin()),
                   std::make_move_iterator(header.tensors.end()));
    metadata.merge(header.metadata);
  }

  const Shard& shard_of(std::span<const std::byte> data) const {
    for (const Shard& shard : shards) {
      auto bytes = shard.file->bytes();
      if (std::less_equal<>()(bytes.data(), data.data()) &&
          std::less_equal<>()(data.data() + data.size(), bytes.data() + bytes.size()))
        return shard;
    }
    throw Error(ErrorKind::internal, "{} bytes are of no tensor of {}", data.size(), path.string());
  }

  void index_names() {
    by_name.resize(tensors.size());
    for (uint32_t i = 0; i < by_name.size(); ++i) by_name[i] = i;
    std::ranges::sort(by_name, [&](uint32_t a, uint32_t b) {
      return std::pair(std::string_view(tensors[a].name), a) < std::pair(std::string_view(tensors[b].name), b);
    });
  }

  void refuse_a_name_in_two_shards() const {
    auto twice =
        std::ranges::adjacent_find(by_name, [&](uint32_t a, uint32_t b) { return tensors[a].name == tensors[b].name; });
    if (twice == by_name.end()) return;
    throw Error(ErrorKind::data, "tensor {} lies in {} and in {}", shown(tensors[*twice].name),
                shard_of(tensors[*twice].data).path.filename().string(),
                shard_of(tensors[*(twice + 1)].data).path.filename().string())
        .at(path.string())
        .advise("shards of two different models may lie here together: fetch the model again into an empty folder");
  }

  const TensorView* find(std::string_view name) const {
    auto found = std::ranges::lower_bound(by_name, name, {},
                                          [&](uint32_t place) { return std::string_view(tensors[place].name); });
    return found != by_name.end() && tensors[*found].name == name ? &tensors[*found] : nullptr;
  }
};

namespace {

constexpr uint64_t largest_index = uint64_t{64} << 20;

// A plain name inside the folder, which may itself be a link, as in Hugging Face's cache.
bool is_plain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// tensor -> file name, as the index has it.
std::map<std::string, std::string> read_index(const fs::path& path) {
  nlohmann::json index = read_json_object(path, largest_index);
  auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object())
    throw Error(ErrorKind::data, "'weight_map' is missing or no object")
        .at(path.string())
        .advise("a model.safetensors.index.json was expected here");
  std::map<std::string, std::string> out;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string())
      throw Error(ErrorKind::data, "the shard of tensor {} must be a file name", shown(name)).at(path.string());
    if (!is_plain(file.get_ref<const std::string&>()))
      throw Error(ErrorKind::data, "the shard {} of tensor {} leaves the index's folder",
                  shown(file.get_ref<const std::string&>()), shown(name))
          .at(path.string())
          .advise("only plain file names beside the index are followed");
    out.emplace(name, file.get<std::string>());
  }
  return out;
}

// The file or index that holds a folder's weights.
fs::path weights_in(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(folder / name, ignored)) return folder / name;
  Error error(ErrorKind::data, "there is no model.safetensors and no model.safetensors.index.json here");
  error.at(folder.string());
  if (fs::exists(folder / "pytorch_model.bin", ignored) || fs::exists(folder / "pytorch_model.bin.index.json", ignored))
    error.advise("pytorch_model.bin is not read: load the model in transformers and save_pretrained() it");
  else
    error.advise("name a Hugging Face folder with its weights");
  throw error;
}

} // namespace

Safetensors Safetensors::open(const fs::path& path) {
  auto content = std::make_shared<Content>();
  std::error_code ignored;
  content->path = fs::is_directory(path, ignored) ? weights_in(path) : path;
  if (content->path.extension() != ".json") {
    content->add(content->path);
    content->index_names();
    return Safetensors(std::move(content));
  }

  auto index = read_index(content->path);
  std::map<std::string, std::vector<std::string_view>> names_of_shard;
  for (const auto& [name, file] : index) names_of_shard[file].push_back(name);
  for (const auto& [file, names] : names_of_shard) {
    if (!fs::exists(content->path.parent_path() / file, ignored))
      throw Error(ErrorKind::data, "the shard {}, which holds {} tensors, is missing", file, names.size())
          .at(content->path.string())
          .advise("fetch all files that the index names");
    content->add(content->path.parent_path() / file);
  }
  content->index_names();
  content->refuse_a_name_in_two_shards();

  Problems problems;
  for (const auto& [name, file] : index) {
    const TensorView* tensor = content->find(name);
    if (!tensor)
      problems.add("tensor {} should be in {}, and is in no shard", shown(name), file);
    else if (auto actual = content->shard_of(tensor->data).path.filename().string(); actual != file)
      problems.add("tensor {} should be in {}, and is in {}", shown(name), file, actual);
  }
  for (const TensorView& tensor : content->tensors)
    if (!index.contains(tensor.name))
      problems.add("tensor {} of {} is not in the index", shown(tensor.name),
                   content->shard_of(tensor.data).path.filename().string());
  problems.raise(content->path.string(), "the index and its shards do not belong together: fetch the model again");
  return Safetensors(std::move(content));
}

Safetensors Safetensors::view(std::vector<TensorView> tensors) const {
  auto content = std::make_shared<Content>();
  content->path = content_->path;
  content->shards = content_->shards;
  content->tensors = std::move(tensors);
  content->index_names();
  return Safetensors(std::move(content));
}

const fs::path& Safetensors::path() const {
  return content_->path;
}

const std::vector<TensorView>& Safetensors::tensors() const& {
  return content_->tensors;
}

const TensorView* Safetensors::find(std::string_view name) const& {
  return content_->find(name);
}

const TensorView& Safetensors::at(std::string_view name) const& {
  if (const TensorView* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const TensorView& tensor : tensors()) names.push_back(tensor.name);
  Error error(ErrorKind::data, "there is no tensor {}", shown(name));
  error.at(path().string());
  if (auto near = nearest(name, names)) error.advise("the nearest name is " + shown(*near));
  throw error;
}

const std::map<std::string, std::string>& Safetensors::metadata() const {
  return content_->metadata;
}

uint64_t Safetensors::byte_size() const {
  uint64_t sum = 0;
  for (const TensorView& tensor : tensors()) sum += tensor.data.size();
  return sum;
}

void Safetensors::drop(const TensorView& tensor) const {
  const auto data = tensor.reader ? tensor.reader->stored() : tensor.data;
  if (!data.empty()) content_->shard_of(data).file->drop(data);
}

} // namespace fvlm
