// Shards of one sample, read by a SampleReader.
#pragma once
#include "../shards/tar_maker.h"
#include "../small_tokenizer.h"
#include "base/error.h"
#include "base/hash.h"
#include "data/media/write_image.h"
#include "data/samples/sample_reader.h"

#include <string>
#include <utility>
#include <vector>

namespace fvlm::test {

using Files = std::vector<std::pair<std::string, std::string>>; // "json" -> its bytes

inline const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_json(small_tokenizer().dump(), "tokenizer.json");
  return tokenizer;
}

inline Image plain_image(int64_t width, int64_t height, uint8_t red, uint8_t green, uint8_t blue) {
  Image image{width, height, {}};
  for (int64_t i = 0; i < width * height; ++i) image.rgb.insert(image.rgb.end(), {red, green, blue});
  return image;
}

// A uint8 array as numpy.save writes it.
inline std::string npy(const std::string& shape, const std::string& data, const std::string& type = "|u1") {
  std::string head = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, shape);
  head.resize((10 + head.size() + 1 + 63) / 64 * 64 - 11, ' ');
  head += '\n';
  return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(head.size() % 256) + static_cast<char>(head.size() / 256) +
         head + data;
}

struct OneSample {
  Folder folder;
  std::shared_ptr<const Shard> shard;

  explicit OneSample(const Files& files, const std::string& key = "clips/7") {
    TarMaker tar;
    for (const auto& [name, content] : files) tar.file(fmt::format("{}.{}", key, name), content);
    write_bytes(folder / "a.tar", tar.end());
    shard = Shard::open(folder / "a.tar", {.cache = folder / "cache"});
  }
};

struct Wanted {
  plan::Mix mix;
  plan::Source source;
  int64_t image_size = 4;
  plan::VisualRows visual_rows;
};

inline Wanted text_only() {
  Wanted wanted;
  wanted.source.text = {"*.tar"};
  return wanted;
}

inline Sample measure(const Files& files, const Wanted& wanted = {}) {
  OneSample one(files);
  return SampleReader(wanted.mix, byte_tokenizer(), wanted.image_size, nullptr, wanted.visual_rows)
      .measure(*one.shard, one.shard->sample(0), wanted.source);
}

// The error's whole text; "" where there was none.
inline std::string refusal(const Files& files, const Wanted& wanted = {}) {
  try {
    measure(files, wanted);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_EQ(dynamic_cast<const ReadError*>(&error), nullptr);
    return error.text();
  }
}

// The text with its answer tokens in [brackets].
inline std::string reported(const SampleText& text) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < text.ids.size(); ++i) {
    if (inside != (text.answer_mask[i] == 1)) out += (inside = !inside) ? "[" : "]";
    out += byte_tokenizer().decode(std::span(&text.ids[i], 1));
  }
  return inside ? out + "]" : out;
}

// A chat as the template has it, without the system line; "user" and "assistant" in turns.
inline std::string chat(const std::vector<std::string>& turns) {
  std::string out;
  for (size_t i = 0; i < turns.size(); ++i)
    out += i % 2 == 0 ? fmt::format("<|im_start|>user\n{}<|im_end|>\n", turns[i])
                      : fmt::format("<|im_start|>assistant\n[{}<|im_end|>\n]", turns[i]);
  return out;
}

inline std::string with_system(const std::string& chat, const std::string& line = "You are a helpful AI assistant.") {
  return fmt::format("<|im_start|>system\n{}<|im_end|>\n", line) + chat;
}

} // namespace fvlm::test
