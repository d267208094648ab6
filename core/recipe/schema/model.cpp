// The schema of fvlm.model { }: vision tower, decoder and connector.
#include "model/connector/settings.h"
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"

namespace fvlm::recipe {
namespace {

using namespace plan;

Ref<Dinov2> dinov2() {
  return record<Dinov2>("Dinov2", "dinov2", "A new DINOv2 vision tower, initialized from the recipe's seed.")
      .field("width", &Dinov2::width, integer(at_least(1)), "Features of a token.")
      .required()
      .field("layers", &Dinov2::layers, integer(at_least(1)), "Number of layers.")
      .required()
      .field("heads", &Dinov2::heads, integer(at_least(1)), "Attention heads; must divide the width.")
      .required()
      .field("mlp", &Dinov2::mlp, optional(integer(at_least(1))), "Features inside the MLP. Default: 4 x width.")
      .field("patch_size", &Dinov2::patch_size, integer(at_least(1)),
             "Edge of the square patch that becomes one token.")
      .unit("pixels")
      .check([](Reader& reader, const Dinov2& tower) {
        if (tower.width % tower.heads)
          reader.report_at(".heads",
                           fmt::format("a width of {1} is not divisible by {0} heads", tower.heads, tower.width));
      })
      .done();
}

Ref<Llama> llama() {
  return record<Llama>("Llama", "llama", "A new decoder of the Llama family, initialized from the recipe's seed.")
      .field("tokenizer", &Llama::tokenizer, path(),
             "Folder with tokenizer.json, which determines the vocabulary size.")
      .required()
      .field("width", &Llama::width, integer(at_least(1)), "Features of a token.")
      .required()
      .field("layers", &Llama::layers, integer(at_least(1)), "Number of layers.")
      .required()
      .field("heads", &Llama::heads, integer(at_least(1)), "Query heads; must divide the width.")
      .required()
      .field("kv_heads", &Llama::kv_heads, optional(integer(at_least(1))),
             "Key and value heads, shared by groups of query heads. Default: as many as heads.")
      .field("mlp", &Llama::mlp, optional(integer(at_least(1))), "Features inside the gated MLP. Default: 4 x width.")
      .field("rope_theta", &Llama::rope_theta, number(above(0)), "Base of the rotary position angles.")
      .field("tied_head", &Llama::tied_head, boolean(), "Share the weights of the output head and the token embedding.")
      .field("max_positions", &Llama::max_positions, integer(at_least(1)),
             "Longest sequence of visual and text tokens.")
      .unit("tokens")
      .check([](Reader& reader, const Llama& tower) {
        if (tower.width % tower.heads || tower.width / tower.heads % 2)
          reader.report_at(
              ".heads",
              fmt::format("a width of {1} over {0} heads does not give an even number of features per head",
                          tower.heads, tower.width),
              "rotary positions need width / heads to be an even integer");
        else if (tower.heads % tower.kv_heads.value_or(tower.heads))
          reader.report_at(".kv_heads",
                           fmt::format("{} heads are not divisible by {} kv_heads", tower.heads, *tower.kv_heads));
      })
      .done();
}

} // namespace

Ref<Model> model_schema() {
  static const auto type =
      record<Model>("Model", "model", "The model: a vision tower, a decoder and the connector between them.")
          .usage("fvlm.model { vision = \"weights/dinov2-small\", decoder = \"weights/SmolLM2-135M-Instruct\" }")
          .field("vision", &Model::vision, one_of(path(), dinov2()),
                 "The vision tower: a Hugging Face folder (config.json, model.safetensors), or a new one.")
          .required()
          .field("decoder", &Model::decoder, one_of(path(), llama()),
                 "The language model: a Hugging Face folder with its tokenizer, or a new one.")
          .required()
          .aliases({"llm", "language_model"})
          .field("connector", &Model::connector, registered(connector::all_settings(), PlainTable::first),
                 "The connector; a plain table is fvlm.foveated. Initialized from the seed, unless a stage's `from` "
                 "provides one.")
          .field("image_size", &Model::image_size, integer(at_least(1)),
                 "Edge of the square frames that the vision tower reads. The default is that of the vision folder's "
                 "preprocessor_config.json, where there is one.")
          .unit("pixels")
          .field("groups", &Model::groups, map("group name", list(text(), {.min = 1, .allow_single = true})),
                 "Parameter groups besides connector, vision and decoder: patterns (with *) of parameter names as in a "
                 "model directory. Matched parameters leave those three groups; no parameter may match two groups.")
          .example("{ embeddings = \"decoder.model.embed_tokens.*\" }")
          .check([](Reader& reader, const Model& model) {
            constexpr size_t max_groups = 100; // each stage has a learning rate per group
            if (model.groups.size() > max_groups)
              reader.report_at(".groups", fmt::format("{} parameter groups exceed the limit of {}", model.groups.size(),
                                                      max_groups));
            for (const char* own : {"connector", "vision", "decoder", "default"})
              if (model.groups.contains(own))
                reader.report_at(".groups" + key_part(own), fmt::format("the name '{}' is reserved", own));
            auto* fresh = std::get_if<Dinov2>(&model.vision);
            if (fresh && model.image_size % fresh->patch_size)
              reader.report_at(".image_size", fmt::format("{} pixels are not a multiple of the patch size {}",
                                                          model.image_size, fresh->patch_size));
          })
          .done();
  return type;
}

} // namespace fvlm::recipe
