// The schema of fvlm.model { }: vision tower, decoder and connector.
#include "model/connector/settings.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"

#include <map>
#include <set>

namespace fvlm::recipe {
namespace {

using namespace plan;

// Adds the fields that all vision towers have.
template <class Tower>
Record<Tower>& with_sizes(Record<Tower>&& tower) {
  return tower.field("width", &Tower::width, integer(at_least(1)), "Features of a token.")
      .required()
      .field("layers", &Tower::layers, integer(at_least(1)), "Number of layers.")
      .required()
      .field("heads", &Tower::heads, integer(at_least(1)), "Attention heads; must divide the width.")
      .required()
      .field("mlp", &Tower::mlp, optional(integer(at_least(1))), "Features inside the MLP. Default: 4 x width.")
      .field("patch_size", &Tower::patch_size, integer(at_least(1)), "Edge of the square patch that becomes one token.")
      .unit("pixels")
      .check([](Reader& reader, const Tower& read) {
        if (read.width % read.heads)
          reader.report_at(".heads",
                           fmt::format("a width of {1} is not divisible by {0} heads", read.heads, read.width));
      });
}

Ref<Dinov2> dinov2() {
  return with_sizes(
             record<Dinov2>("Dinov2", "dinov2", "A new DINOv2 vision tower, initialized from the recipe's seed."))
      .done();
}

Ref<Clip> clip() {
  return with_sizes(
             record<Clip>("Clip", "clip",
                          "A new vision tower of CLIP, initialized from the recipe's seed as transformers does it."))
      .field("drop_class_token", &Clip::drop_class_token, boolean(),
             "Leave the class token out of what the connector reads, as LLaVA does.")
      .done();
}

Ref<Siglip> siglip() {
  return with_sizes(
             record<Siglip>("Siglip", "siglip",
                            "A new vision tower of SigLIP, initialized from the recipe's seed as transformers does "
                            "it. It has no class token."))
      .done();
}

Ref<Bytes> bytes() {
  return record<Bytes>("Bytes", "bytes",
                       "A new encoder of a text's bytes, initialized from the recipe's seed: LatentWire. It goes with "
                       "fvlm.byte_latents.")
      .field("max_bytes", &Bytes::max_bytes, integer(between(1, 1 << 20)),
             "Longest text; the end of a longer context is cut off.")
      .unit("bytes")
      .field("width", &Bytes::width, integer(at_least(2)), "Features of a byte.")
      .field("layers", &Bytes::layers, integer(at_least(1)), "Number of layers.")
      .field("heads", &Bytes::heads, integer(at_least(1)), "Attention heads; must divide the width.")
      .field("mlp", &Bytes::mlp, optional(integer(at_least(1))), "Features inside the MLP. Default: 4 x width.")
      .check([](Reader& reader, const Bytes& encoder) {
        if (encoder.width % 2 || encoder.width % encoder.heads)
          reader.report_at(".heads", fmt::format("a width of {1} is not even, or not divisible by {0} heads",
                                                 encoder.heads, encoder.width));
      })
      .done();
}

Ref<Llama> llama() {
  static const auto type =
      record<Llama>("Llama", "llama", "A new decoder of the Llama family, initialized from the recipe's seed.")
          .field("tokenizer", &Llama::tokenizer, path(),
                 "Folder with tokenizer.json, which determines the vocabulary size.")
          .required()
          .field("family", &Llama::family,
                 optional(choice<LlamaFamily>({{"llama", LlamaFamily::llama, "no biases, no norms of q and k"},
                                               {"qwen2", LlamaFamily::qwen2, "biases of q, k and v"},
                                               {"qwen3", LlamaFamily::qwen3, "RMSNorm of each head of q and k"}})),
                 "Member of the family, and the architecture as which it is exported. Default: llama.")
          .field("width", &Llama::width, integer(at_least(1)), "Features of a token.")
          .required()
          .field("layers", &Llama::layers, integer(at_least(1)), "Number of layers.")
          .required()
          .field("heads", &Llama::heads, integer(at_least(1)),
                 "Query heads; must divide the width unless head_width is given.")
          .required()
          .field("head_width", &Llama::head_width, optional(integer(at_least(2))),
                 "Features of a head. Default: width / heads.")
          .field("kv_heads", &Llama::kv_heads, optional(integer(at_least(1))),
                 "Key and value heads, shared by groups of query heads. Default: as many as heads.")
          .field("mlp", &Llama::mlp, optional(integer(at_least(1))),
                 "Features inside the gated MLP. Default: 4 x width.")
          .field("rope_theta", &Llama::rope_theta, number(above(0)), "Base of the rotary position angles.")
          .field(
              "initializer_range", &Llama::initializer_range, optional(number(above(0))),
              "Standard deviation of the initial matrices. A narrow decoder learns sooner from about 1 / sqrt(width). "
              "Default: 0.02.")
          .field("embedding_range", &Llama::embedding_range, optional(number(above(0))),
                 "Standard deviation of the initial token embedding. Default: initializer_range.")
          .field("tied_head", &Llama::tied_head, boolean(),
                 "Share the weights of the output head and the token embedding.")
          .field("max_positions", &Llama::max_positions, integer(at_least(1)),
                 "Longest sequence of visual and text tokens.")
          .unit("tokens")
          .check([](Reader& reader, const Llama& tower) {
            if (tower.head_width) {
              if (*tower.head_width % 2)
                reader.report_at(".head_width", fmt::format("a head of {} features is odd", *tower.head_width),
                                 "rotary positions need an even integer");
            } else if (tower.width % tower.heads || tower.width / tower.heads % 2)
              reader.report_at(
                  ".heads",
                  fmt::format("a width of {1} over {0} heads does not give an even number of features per head",
                              tower.heads, tower.width),
                  "rotary positions need width / heads to be an even integer; or give head_width");
            if (tower.heads % tower.kv_heads.value_or(tower.heads))
              reader.report_at(".kv_heads",
                               fmt::format("{} heads are not divisible by {} kv_heads", tower.heads, *tower.kv_heads));
          })
          .done();
  return type;
}

Ref<GhostVis> ghostvis() {
  static const auto type =
      record<GhostVis>("GhostVis", "ghostvis",
                       "A new decoder of GhostVis, initialized from the recipe's seed. Its depth decides all sizes: "
                       "64 features a layer, heads of 128 features, half as many key and value heads, and an MLP of "
                       "2.7 x the width, rounded up to a multiple of 64.")
          .usage("fvlm.ghostvis { depth = 20, tokenizer = \"weights/tokenizer\" }")
          .field("tokenizer", &GhostVis::tokenizer, path(),
                 "Folder with tokenizer.json, which determines the vocabulary size.")
          .required()
          .field("depth", &GhostVis::depth, integer(between(2, 256)), "Number of layers: 2, or a multiple of 4.")
          .required()
          .unit("layers")
          .field("max_positions", &GhostVis::max_positions, integer(at_least(1)),
                 "Longest sequence of visual and text tokens.")
          .unit("tokens")
          .check([](Reader& reader, const GhostVis& decoder) {
            if (decoder.depth != 2 && decoder.depth % 4)
              reader.report_at(".depth", fmt::format("a depth of {} does not divide into heads", decoder.depth),
                               "use 2 or a multiple of 4");
          })
          .done();
  return type;
}

Ref<Lora> lora() {
  static const auto type =
      record<Lora>("Lora", "lora",
                   "Low-rank adapters (LoRA, DoRA) on linears of an encoder or a decoder that comes from a folder. Its "
                   "own weights are frozen, in the run's precision or quantized as they are in the folder (QLoRA); the "
                   "adapters alone have gradients and an optimizer, and checkpoints hold them alone.")
          .usage("fvlm.lora { rank = 16, alpha = 32, targets = { \"q\", \"v\" } }")
          .field("parts", &Lora::parts, list(text(), {.min = 1, .allow_single = true}),
                 "Which parts: vision, decoder, decoder2 and so on.")
          .field("rank", &Lora::rank, integer(between(1, 4096)), "Rank of each adapter.")
          .required()
          .aliases({"r", "lora_rank", "lora_r"})
          .field("alpha", &Lora::alpha, optional(number(above(0))),
                 "What an adapter adds is scaled by alpha / rank. Default: 2 x its rank.")
          .aliases({"lora_alpha"})
          .field(
              "rank_pattern", &Lora::rank_pattern, map("module", integer(between(1, 4096))),
              "Ranks of modules that have another one, by names as in `targets` or by regular expressions of them as "
              "in PEFT. The part stands before a name (\"vision.*\"). Each key has to match a module with an adapter, "
              "and one number at most is for a module.")
          .added_later()
          .example("{ down = 32, [\"layers.0.self_attn.q_proj\"] = 8, [\"vision.*\"] = 4 }")
          .field("alpha_pattern", &Lora::alpha_pattern, map("module", number(above(0))), "The same for alpha.")
          .added_later()
          .example("{ down = 64 }")
          .field("dropout", &Lora::dropout, number(at_least(0).below(1)),
                 "Share of the inputs of adapters that is zeroed in training.")
          .aliases({"lora_dropout"})
          .field("targets", &Lora::targets, list(text(), {.min = 1, .allow_single = true}),
                 "Linears that get an adapter: q, k, v, o, gate, up, down of any family, names of modules or ends of "
                 "such names as in PEFT (\"self_attn.q_proj\"), or all.")
          .aliases({"target_modules", "lora_target"})
          .field("modules_to_save", &Lora::modules_to_save, optional(list(text(), {.min = 1, .allow_single = true})),
                 "Modules of the part that train whole, beside the adapters: names or ends of names, none of a linear "
                 "of a layer.")
          .aliases({"additional_target"})
          .example("{ \"model.norm\" }")
          .field("dora", &Lora::dora, boolean(),
                 "DoRA: a trained magnitude for each output feature, and adapters of the direction. Dropout then "
                 "applies to what the adapters read alone.")
          .aliases({"use_dora"})
          .done();
  return type;
}

void check_adapters(Reader& reader, const Model& model) {
  if (!model.adapters) return;
  std::map<std::string, bool> comes_from_folder{
      {"vision", model.directory || std::holds_alternative<std::string>(model.vision)}};
  comes_from_folder[decoder_name(0)] = model.directory || std::holds_alternative<std::string>(model.decoder);
  for (size_t i = 1; i < model.decoder_count(); ++i)
    comes_from_folder[decoder_name(i)] = std::holds_alternative<std::string>((*model.decoders)[i - 1]);
  std::set<std::string> seen;
  for (size_t i = 0; i < model.adapters->size(); ++i)
    for (const std::string& part : (*model.adapters)[i].parts) {
      const std::string path = ".adapters" + index_part(i + 1) + ".parts";
      std::vector<std::string> known;
      for (const auto& [name, unused] : comes_from_folder) known.push_back(name);
      if (!comes_from_folder.contains(part) && !model.directory)
        reader.report_at(path, fmt::format("the model has no part '{}' that can have adapters", part),
                         advise_key(part, known));
      else if (comes_from_folder.contains(part) && !comes_from_folder[part])
        reader.report_at(path, fmt::format("the part '{}' is new, and adapters need weights that exist", part),
                         "train it whole, or name the folder of a trained one");
      if (!seen.insert(part).second)
        reader.report_at(path, fmt::format("the part '{}' has two adapters", part), "remove one of them");
    }
}

Ref<std::optional<int64_t>> pixels() {
  return optional(integer(between(1, ProcessorOverrides::largest)));
}

// What the folder of an encoder says is compared where it is read.
void check_limits(Reader& reader, const Model& model) {
  const auto& [min, max, video_min, video_max] = processor_limits;
  for (const auto& [least, most] : {std::pair(min, max), std::pair(video_min, video_max)})
    if (model.*least.value && model.*most.value && *(model.*least.value) > *(model.*most.value))
      reader.report_at(std::string(".") + least.key,
                       fmt::format("{} is more than {} = {}", *(model.*least.value), most.key, *(model.*most.value)));
  if (model.directory || std::holds_alternative<std::string>(model.vision)) return;
  for (const ProcessorLimit& limit : processor_limits)
    if (model.*limit.value)
      reader.report_at(std::string(".") + limit.key, "a new encoder has no image processor with such a limit",
                       "image_size is the edge of the frames that it reads");
}

void check_model(Reader& reader, const Model& model) {
  constexpr size_t max_groups = 100; // each stage has a learning rate per group
  if (model.groups.size() > max_groups)
    reader.report_at(".groups",
                     fmt::format("{} parameter groups exceed the limit of {}", model.groups.size(), max_groups));
  std::vector<std::string> reserved = {"connector", "vision", "default"};
  for (size_t i = 0; i < model.decoder_count(); ++i) reserved.push_back(decoder_name(i));
  for (const std::string& own : reserved)
    if (model.groups.contains(own))
      reader.report_at(".groups" + key_part(own), fmt::format("the name '{}' is reserved", own));
  check_adapters(reader, model);
  check_limits(reader, model);
  if (model.decoders && !model.connector->goes_with_several_decoders())
    reader.report_at(".decoders",
                     fmt::format("what fvlm.{} makes of a frame is for one decoder", model.connector->name()),
                     "several decoders need the connector fvlm.byte_latents, or remove `decoders`");
  if (std::holds_alternative<Bytes>(model.vision) != model.connector->reads_bytes() &&
      !std::holds_alternative<std::string>(model.vision))
    reader.report_at(".connector", fmt::format("fvlm.{} does not go with this encoder", model.connector->name()),
                     "fvlm.byte_latents goes with the encoder fvlm.bytes, and other connectors with an encoder "
                     "of images");
  const FreshVision* fresh = model.fresh_vision();
  if (fresh && model.image_size % fresh->patch_size)
    reader.report_at(".image_size", fmt::format("{} pixels are not a multiple of the patch size {}", model.image_size,
                                                fresh->patch_size));
}

} // namespace

Ref<Model> model_schema() {
  static const auto type =
      record<Model>("Model", "model", "The model: a vision tower, a decoder and the connector between them.")
          .usage("fvlm.model { vision = \"weights/dinov2-small\", decoder = \"weights/SmolLM2-135M-Instruct\" }")
          .shorthand("directory")
          .field(
              "directory", &Model::directory, optional(path()),
              "A model directory or checkpoint in place of vision, decoder and connector. The first stage, and `from = "
              "\"model\"`, start from its weights. `model = \"DIR\"` is short for it.")
          .example("\"models/smolvlm\"")
          .field("vision", &Model::vision, one_of(path(), dinov2(), clip(), siglip(), bytes()),
                 "The encoder: a Hugging Face folder (config.json, model.safetensors), or a new one.")
          .required_without("directory")
          .field("decoder", &Model::decoder, one_of(path(), llama(), ghostvis()),
                 "The language model: a Hugging Face folder with its tokenizer, or a new one.")
          .required_without("directory")
          .aliases({"llm", "language_model"})
          .field("decoders", &Model::decoders, optional(list(one_of(path(), llama(), ghostvis()), {.min = 1})),
                 "Further language models, `decoder2`, `decoder3` and so on, which read the same latents of "
                 "fvlm.byte_latents behind adapters of their own. Each has its tokenizer, its texts (`decoders` of a "
                 "mix) and its parameter group; the loss is the mean over all.")
          .example("{ \"weights/Qwen2.5-0.5B-Instruct\" }")
          .field("connector", &Model::connector, registered(connector::all_settings(), PlainTable::first),
                 "The connector; a plain table is fvlm.foveated. Initialized from the seed, unless a stage's `from` "
                 "provides one.")
          .field(
              "image_size", &Model::image_size, integer(at_least(1)),
              "Edge of the square frames that the encoder reads. The default is that of the preprocessor_config.json "
              "in the encoder's folder, where there is one (not for DINOv2); or, with a `directory`, that of its "
              "encoder, at most 224 unless its connector makes rows of every patch, as in LLaVA and SmolVLM.")
          .unit("pixels")
          .field(
              "min_pixels", &Model::min_pixels, pixels(),
              "Fewest pixels of an image, as in transformers and in place of the encoder's preprocessor_config.json; "
              "for image processors that make cells of images of any size: Qwen2-VL to Qwen3.5, LFM3-VL, GLM, "
              "PaddleOCR-VL, HunyuanOCR and VideoLLaMA 3. Checkpoints and exports keep it. Default: the folder's.")
          .unit("pixels")
          .example("50176")
          .field("max_pixels", &Model::max_pixels, pixels(),
                 "Most pixels of an image, for the same image processors. Default: the folder's.")
          .unit("pixels")
          .example("501760")
          .field("video_min_pixels", &Model::video_min_pixels, pixels(),
                 "Fewest pixels of a video, as its processor counts them: of each frame (Qwen2-VL, Qwen2.5-VL), or of "
                 "all frames together (Qwen3-VL, Qwen3.5, LFM3-VL, GLM). Default: the folder's.")
          .unit("pixels")
          .field("video_max_pixels", &Model::video_max_pixels, pixels(),
                 "Most pixels of a video, counted in the same way. Default: the folder's.")
          .unit("pixels")
          .field("adapters", &Model::adapters, optional(list(lora(), {.min = 1, .allow_single = true})),
                 "Low-rank adapters: of each part at most one fvlm.lora. The parts without stay as they are.")
          .example("fvlm.lora { rank = 16, targets = { \"q\", \"k\", \"v\", \"o\" } }")
          .aliases({"lora", "peft_config"})
          .field("groups", &Model::groups, map("group name", list(text(), {.min = 1, .allow_single = true})),
                 "Parameter groups besides connector, vision and decoder: patterns (with *) of parameter names as in a "
                 "model directory. A number below 0 counts from the last layer: decoder.model.layers.-1.*. Matched "
                 "parameters leave those three groups; no parameter may match two groups.")
          .example("{ embeddings = \"decoder.model.embed_tokens.*\" }")
          .check(check_model)
          .done();
  return type;
}

} // namespace fvlm::recipe
