#include "cli/recipe_draft.h"

#include "base/terminal.h"
#include "recipe/plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::cli {
namespace {

std::string quoted(const std::string& text) {
  const bool all_can_be_shown = strip_control_characters(text) == text;
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte < 0x20 || (byte >= 0x7f && !all_can_be_shown))
      out += fmt::format("\\{:03}", byte);
    else
      out += c;
  }
  return out + '"';
}

// Text of one line, as a comment: the names of files and folders may hold anything, a line's end included.
std::string comment(const std::string& text) {
  std::string line = strip_control_characters(text);
  std::ranges::replace(line, '\n', ' ');
  return line.empty() ? "--\n" : "-- " + line + "\n";
}

// Rates at which such models are usually trained further.
struct Rates {
  const char* lr;
  const char* weight_decay;
};

Rates rates_of(const RecipeDraft& draft) {
  if (draft.lora_rank > 0 && draft.directory.empty()) return {"{ connector = 1e-3, default = 2e-4 }", "0"};
  if (draft.lora_rank > 0) return {draft.learns_preferences() ? "1e-5" : "2e-4", "0"};
  if (draft.learns_preferences()) return {"1e-6", "0"};
  return {draft.directory.empty() ? "{ connector = 1e-3, default = 1e-5 }" : "2e-5", "0.01"};
}

std::string source_text(const RecipeDraft& draft, const RecipeDraft::Source& source, bool several) {
  std::string text = (source.text_only ? "text = " : "") + quoted(source.pattern);
  if (draft.root) text += ", root = " + quoted(*draft.root);
  if (!source.fields.empty()) {
    std::string fields;
    for (const auto& [part, key] : source.fields)
      fields += fmt::format("{}{} = {}", fields.empty() ? "" : ", ", part, quoted(key));
    text += ", fields = { " + fields + " }";
  }
  if (!source.held_out.empty()) text += ", held_out = " + source.held_out;
  if (several) text += fmt::format(", weight = {}", source.samples);
  return "{ " + text + " }";
}

std::string model_text(const RecipeDraft& draft) {
  std::string text;
  if (draft.directory.empty())
    text = fmt::format("    vision = {},\n    decoder = {},\n    connector = fvlm.{} {{}},\n", quoted(draft.vision),
                       quoted(draft.decoder), draft.connector);
  else if (draft.lora_rank == 0 && !draft.image_size && draft.limits == ProcessorOverrides())
    return fmt::format("  model = {},\n", quoted(draft.directory));
  else
    text = fmt::format("    directory = {},\n", quoted(draft.directory));
  if (draft.image_size) text += fmt::format("    image_size = {},\n", *draft.image_size);
  for (const ProcessorLimit& limit : processor_limits)
    if (const auto& value = draft.limits.*limit.value) text += fmt::format("    {} = {},\n", limit.key, *value);
  if (draft.lora_rank > 0)
    text += fmt::format("    adapters = fvlm.lora {{ rank = {}, targets = \"all\" }},\n", draft.lora_rank);
  return "  model = fvlm.model {\n" + text + "  },\n";
}

// The function that training and evaluation call for what the model sees of their samples.
std::string mix_text(const RecipeDraft& draft) {
  std::string text = "local function mix(...)\n  return fvlm.mix {\n";
  const auto add = [&](const char* key, const auto& value) { text += fmt::format("    {} = {},\n", key, value); };
  if (draft.chat_template) add("chat_template", quoted(*draft.chat_template));
  if (draft.system) add("system", quoted(*draft.system));
  if (draft.mask_history) add("mask_history", "true");
  if (draft.max_frames) add("max_frames", *draft.max_frames);
  if (draft.image_frames) add("replicate_image_frames", *draft.image_frames);
  if (draft.max_text_tokens) add("max_text_tokens", *draft.max_text_tokens);
  if (draft.negatives) add("negatives", *draft.negatives);
  return text + "    ...,\n  }\nend\n\n";
}

std::string sources_text(const RecipeDraft& draft, const std::vector<RecipeDraft::Source>& sources) {
  std::string text;
  for (const auto& source : sources) {
    if (!text.empty()) text += ", ";
    text += source_text(draft, source, sources.size() > 1);
  }
  return text;
}

std::string stage_text(const RecipeDraft& draft) {
  const Rates rates = rates_of(draft);
  std::string text = fmt::format("  fvlm.stage \"{}\" {{\n", draft.learns_preferences() ? "preferences"
                                                             : draft.embeds()           ? "retrieval"
                                                                                        : "sft");
  const auto add = [&](const char* key, const std::string& value) {
    text += fmt::format("    {} = {},\n", key, value);
  };
  if (draft.lora_rank > 0) add("freeze", draft.directory.empty() ? "\"vision\"" : "{ \"vision\", \"connector\" }");
  add("data", fmt::format("mix({})", sources_text(draft, draft.train)));
  if (!draft.mode.empty()) add("mode", quoted(draft.mode));
  add("objective", fmt::format("fvlm.{} {{ {} }}", draft.objective,
                               draft.learns_preferences() ? "beta = 0.1"
                               : draft.embeds()           ? "temperature = 0.02"
                                                          : "on = \"answer\""));
  add("optimizer", fmt::format("fvlm.adamw {{ lr = {}, weight_decay = {} }}", rates.lr, rates.weight_decay));
  add("schedule", "fvlm.cosine { to_share = 0.1, warmup = 0.03 }");
  add("epochs", fmt::format("{}", draft.epochs));
  add("batch", fmt::format("{}", draft.batch));
  if (!draft.held_out.empty()) {
    text += fmt::format("    evaluation = {{\n      every = {},\n", draft.a_tenth());
    std::string measured = quoted(draft.measure);
    if (draft.measure == "answer") measured += fmt::format(", max_new_tokens = {}", *draft.max_new_tokens);
    if (!draft.evaluation_mode.empty()) measured += ", modes = " + quoted(draft.evaluation_mode);
    text += fmt::format(
        "      fvlm.evaluation \"held-out\" {{ data = mix({}), measure = {}, samples = 512{} }},\n    }},\n",
        sources_text(draft, draft.held_out), measured, draft.measure == "retrieval" ? "" : ", show = 8");
  }
  return text + "  },\n";
}

} // namespace

int64_t RecipeDraft::samples() const {
  int64_t all = 0;
  for (const Source& source : train) all += source.samples;
  return all;
}

int64_t RecipeDraft::steps() const {
  return (epochs * samples() + batch - 1) / batch;
}

int64_t RecipeDraft::a_tenth() const {
  return std::max<int64_t>(1, steps() / 10);
}

std::string RecipeDraft::lua() const {
  std::string text;
  for (const std::string& line : about) text += comment(line);
  text += "local fvlm = require \"fvlm\"\n\n" + mix_text(*this);
  // A short run by itself would have no curve, as its few lines of metrics are means over ten steps each, and no
  // checkpoint before its end.
  const auto often = [tenth = a_tenth()](const char* form, int64_t usual) {
    return tenth < usual ? fmt::format(fmt::runtime(form), tenth) : "";
  };
  const plan::Plan usual;
  text += fmt::format("return fvlm.recipe {{\n  name = {},\n{}{}{}\n{}}}\n", quoted(name), model_text(*this),
                      often("  log_every = {},\n", usual.log_every),
                      often("  checkpoint = {{ every = {} }},\n", usual.checkpoint.every), stage_text(*this));
  return text;
}

} // namespace fvlm::cli
