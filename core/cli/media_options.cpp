#include "cli/media_options.h"

#include "base/error.h"
#include "base/log.h"
#include "cli/recipe_options.h"
#include "data/chat.h"
#include "recipe/resolve.h"

#include <algorithm>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// The stage whose checkpoint this is: RUN/STAGE/step-000100, with RUN/plan.json.
void take_from_run(const fs::path& model, AsTrained& out) {
  const fs::path folder = fs::weakly_canonical(model), plan_file = folder.parent_path().parent_path() / "plan.json";
  if (!fs::exists(plan_file)) return;
  try {
    recipe::Request request;
    request.file = plan_file;
    const plan::Plan plan = recipe::resolve(request).plan;
    const plan::Stage& stage = stage_named(plan, folder.parent_path().filename().string());
    out.media.image_size = plan.model.image_size;
    out.media.most_frames = stage.data.max_frames;
    out.media.image_frames = stage.data.replicate_image_frames;
    out.system = stage.data.system;
  } catch (const Error& error) {
    log_warning("how the model was trained is not known: {}", error.text());
  }
}

} // namespace

Options& with_media_options(Options& options) {
  return options.value("system", "TEXT", "the system turn (You are a helpful AI assistant.); empty: none")
      .value("frames", "N", "at most N of a video, evenly (64)")
      .value("image-frames", "N", "a still picture is repeated to N frames (1)")
      .value("image-size", "N", "pixels a side (224, or what the vision tower was made for where that is less)");
}

AsTrained as_trained(const ParsedOptions& parsed, const fs::path& model, const model::VlmConfig& config) {
  AsTrained out{{}, std::string(default_system_line)};
  out.media.image_size = std::min(config.vision.image_size, out.media.image_size);
  take_from_run(model, out);
  out.media.image_size = parsed.integer_or("image-size", out.media.image_size);
  out.media.most_frames = parsed.integer_or("frames", out.media.most_frames);
  out.media.image_frames = parsed.integer_or("image-frames", out.media.image_frames);
  out.system = parsed.value_or("system", out.system);
  if (out.media.image_size < 1 || out.media.most_frames < 1 || out.media.image_frames < 1)
    throw Error(ErrorKind::usage, "--frames, --image-frames and --image-size want 1 or more");
  return out;
}

} // namespace fvlm::cli
