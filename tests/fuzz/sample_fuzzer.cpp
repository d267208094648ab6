// Any bytes as a sample's JSON, as the head of its array of frames and as the names of its members.
#include "../data/small_tokenizer.h"
#include "base/error.h"
#include "base/json.h"
#include "data/chat.h"
#include "data/samples/frames.h"
#include "data/samples/npy.h"
#include "data/samples/sample_content.h"

#include <cstdint>
#include <cstdlib>

using namespace fvlm;

namespace {

void demand(bool holds) {
  if (!holds) std::abort();
}

template <class Work>
void refusing(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    demand(error.kind() == ErrorKind::data && !error.text().empty());
  }
}

void read_json(std::string_view text) {
  static const Tokenizer tokenizer = Tokenizer::from_json(test::small_tokenizer().dump(), "tokenizer.json");
  static const ChatTemplate chat(tokenizer);
  static const plan::Mix mix;
  static const plan::Source source;
  auto object = parse_json(text, "KEY.json");
  if (!object.is_object()) return;
  SampleContent parsed = parse_sample_content(Parts(object, source.fields), std::nullopt, source, mix, {});
  demand(parsed.conversations.empty() != parsed.tokens.empty());
  for (const auto& talk : parsed.conversations) {
    ChatTokens tokens = chat.encode(talk.turns, talk.system);
    demand(tokens.ids.size() == tokens.answer_mask.size() && !tokens.ids.empty());
  }
  for (const auto& tokens : parsed.tokens)
    demand(tokens.ids.size() == tokens.answer_mask.size() && !tokens.ids.empty());
  if (parsed.correct_choice)
    demand(*parsed.correct_choice >= 0 &&
           *parsed.correct_choice < static_cast<int64_t>(parsed.conversations.size() + parsed.tokens.size()));
}

void read_names(std::string_view text) {
  ShardSample sample{.key = "k"};
  while (!text.empty() && sample.members.size() < 100) {
    auto name = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(name.size() + 1, text.size()));
    sample.members.push_back({std::string(name), 0, 0});
  }
  FoundFrames found = find_frames(sample);
  demand(found.media.members.size() <= sample.members.size());
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  refusing([&] { read_json(text); });
  refusing([&] { read_names(text); });
  refusing([&] {
    NpyFrames array = read_npy_head(std::as_bytes(std::span(data, std::min(size, npy_head_bytes))), size);
    demand(array.data + static_cast<uint64_t>(array.frames) * array.frame_bytes() == size);
  });
  return 0;
}
