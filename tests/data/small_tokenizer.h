// A tokenizer.json for tests, small enough to be read.
#pragma once
#include "data/unicode.h"

#include <nlohmann/json.hpp>

namespace fvlm::test {

// A tokenizer of 256 bytes, three merges and SmolLM2's special tokens.
inline nlohmann::json small_tokenizer() {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    std::string written;
    append_utf8(written, byte_alphabet().point_of_byte[static_cast<size_t>(byte)]);
    vocabulary[written] = byte;
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  vocabulary["bc"] = 258;
  nlohmann::json special = nlohmann::json::array();
  for (const char* content : {"<|im_start|>", "<|im_end|>"})
    special.push_back({{"id", 259 + special.size()}, {"content", content}, {"special", true}});
  return {{"added_tokens", special},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Digits"}, {"individual_digits", true}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b", "b c", "ab c"}}}}};
}

} // namespace fvlm::test
