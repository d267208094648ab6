// fvlm.mix { }: where samples come from and what the model sees of them.
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"
#include "recipe/schema/values.h"

namespace fvlm::recipe {
namespace {

using namespace plan;

const std::vector<WordInfo>& sample_parts() {
  static const std::vector<WordInfo> parts = {
      {"user", "the user's turn"},
      {"assistant", "the answer"},
      {"caption", "a text without a question"},
      {"chosen_assistant", "the preferred answer of a pair"},
      {"rejected_assistant", "the other answer of a pair"},
      {"messages", "a conversation as a list of { role, content }"},
      {"conversations", "a conversation as a list of { from, value }"},
      {"source", "the name that `prompts` goes by"},
      {"frame_count", "how many frames belong to the sample"},
      {"token_ids", "tokens made beforehand, with loss_mask"},
      {"loss_mask", "which of token_ids are learnt"},
      {"choices", "the options of a multiple-choice question"},
      {"answer", "the right option: its number from 0, its letter or its text"},
  };
  return parts;
}

std::string parts_text() {
  std::vector<std::string> all;
  for (const auto& part : sample_parts()) all.push_back(fmt::format("`{}` ({})", part.name, part.doc));
  return fmt::format("{}", fmt::join(all, ", "));
}

void check_source(Reader& reader, const Source& source) {
  if (source.shards.empty() && source.text.empty())
    reader.complain_at("", "no shards: the source is empty",
                       "name tar files: { \"clips/{0000..0999}.tar\" } or { text = \"chat/*.tar\" }");
  if (!source.shards.empty() && !source.text.empty())
    reader.complain_at(".text", "a source holds shards with frames or text-only ones, not both", "make it two sources");
  std::vector<std::string> names;
  for (const auto& part : sample_parts()) names.push_back(part.name);
  for (const auto& [part, key] : source.fields)
    if (std::find(names.begin(), names.end(), part) == names.end())
      reader.complain_at(".fields" + key_part(part), fmt::format("a sample has no part '{}'", part),
                         advise_key(part, names));
}

void check_mix(Reader& reader, const Mix& mix) {
  bool any_text = false, any_frames = false;
  for (const auto& source : mix.sources) (source.text_only() ? any_text : any_frames) = true;
  if (mix.text_ratio && *mix.text_ratio > 0 && !any_text)
    reader.complain_at(".text_ratio", "there is no text-only source to take that share from",
                       "add { text = \"chat/*.tar\" }");
  if (mix.text_ratio && *mix.text_ratio < 1 && !any_frames)
    reader.complain_at(".text_ratio", "there are only text-only sources, their share is 1");
  // Weights are curves: a moment at which no source gives anything would end the stage there.
  for (int i = 0; i < Curve::sampled; ++i) {
    double progress = i / double(Curve::sampled - 1), sum = 0;
    for (double share : mix.shares(progress)) sum += share;
    if (sum > 1 - 1e-9) continue;
    reader.complain_at("", fmt::format("the weights give no source a share at progress {}", progress),
                       "give at least one source (of each kind that text_ratio wants) a weight above 0");
    return;
  }
}

Ref<Source> source() {
  return record<Source>("Source", "", "One set of shards in a mix.")
      .usage("{ \"openvid/{0000..0999}.tar\", weight = 0.86 }")
      .field("shards", &Source::shards, list(path(), {.or_one = true}),
             "WebDataset tar files with images or videos; patterns with *, ? and {0000..0999}.")
      .items()
      .field("text", &Source::text, list(path(), {.or_one = true}),
             "In place of shards: tar files of text-only samples.")
      .field("weight", &Source::weight, curve(at_least(0)),
             "Share of the samples, relative to the other weights of the mix; a function of the stage's progress "
             "changes it on the way.")
      .field("epochs", &Source::epochs, whole(at_least(0)), "Passes before the source is spent; 0: as often as needed.")
      .field("fields", &Source::fields, map("part of a sample", text()),
             "Which key of the shard's JSON holds a part of a sample, where it is not the part's own name. Parts: " +
                 parts_text() + ".")
      .example("{ user = \"question\", assistant = \"answer\" }")
      .field("name", &Source::name, text_or_empty(),
             "Of the samples that name no source of their own: for `prompts` and statistics.")
      .shorthand("shards")
      .check(check_source)
      .done();
}

} // namespace

Ref<Mix> mix_schema() {
  static const auto type =
      record<Mix>("Mix", "mix", "Samples from weighted sources, and what the model sees of a sample.")
          .usage("fvlm.mix { { \"openvid/{0000..0999}.tar\", weight = 0.86 }, { text = \"smoltalk/*.tar\", weight = "
                 "0.14 } }")
          .field("sources", &Mix::sources, list(source(), {.least = 1}), "The sources, each shuffled on its own.")
          .items()
          .required()
          .field("text_ratio", &Mix::text_ratio, optional(number(between(0, 1))),
                 "Share of text-only samples. Weights then count among the sources with frames and among the text-only "
                 "ones. "
                 "Default: the weights alone decide.")
          .field("max_frames", &Mix::max_frames, whole(at_least(1)), "Longer clips are sampled evenly down to this.")
          .unit("frames")
          .field("max_text_tokens", &Mix::max_text_tokens, whole(at_least(2)),
                 "Longest text of a sample, of each answer of a pair.")
          .unit("tokens")
          .elsewhere({"max_length", "max_seq_len"})
          .field("replicate_image_frames", &Mix::replicate_image_frames, whole(at_least(1)),
                 "A still image is repeated to so many frames.")
          .unit("frames")
          .field("overlong", &Mix::overlong,
                 choice<Overlong>({{"truncate", Overlong::truncate, "cut the end, and count what loss was cut"},
                                   {"drop", Overlong::drop, "leave the sample out, and count it"}}),
                 "What happens to a text longer than max_text_tokens.")
          .field("system", &Mix::system, text_or_empty(), "The system turn of every chat; empty: none.")
          .field("prompts", &Mix::prompts, map("source", text()),
                 "What an empty user turn says, by the sample's source; `default` for sources not named.")
          .example("{ openvid = \"Write a brief caption for this video.\" }")
          .field(
              "preprocessed", &Mix::preprocessed, optional(path()),
              "Folder that `preprocess` wrote for this mix; read in place of the sources while its manifest fits them.")
          .beside()
          .check(check_mix)
          .done();
  return type;
}

} // namespace fvlm::recipe
