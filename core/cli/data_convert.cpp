#include "cli/data_convert.h"

#include "base/log.h"
#include "base/text.h"
#include "cli/options.h"
#include "cli/plugin_options.h"
#include "cli/progress.h"
#include "cli/recipe_options.h"
#include "data/convert.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm::cli {

int data_convert(Arguments arguments) {
  Options options(
      "data convert FORM... --out NAME-%06d.tar [--root DIR] [--field PART=KEY] [--text] [--size MIB] [--json]",
      "Write samples to tar shards, as they are and in their order: of .jsonl, .json, .tsv and .parquet files, .gz "
      "and\n"
      ".zst of them, folders and tars. A tar is read fastest, and holds the images with their texts. A sample whose "
      "image\n"
      "is missing, or is a file of another kind, keeps its place and is counted.",
      "data convert llava_v1_5_mix665k.json --root data/images --out data/llava-%06d.tar");
  options.remaining("FORM", "files, folders and patterns of them, as in a recipe's `shards`")
      .required_value("out", "NAME", "the shards' name; %06d stands for the number of each")
      .value("root", "DIR", "what paths in the files are relative to; default: the folder of each file")
      .repeated_value("field", "PART=KEY", "the key of a part of a sample, as in a recipe's `fields` (repeatable)")
      .value("size", "MIB", "begin another shard after this many MiB; default: 1024")
      .flag("text", "the samples are for a text-only source")
      .flag("json", "print one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  plan::Source source;
  (parsed->flag("text") ? source.text : source.shards) = parsed->values("FORM");
  source.root = parsed->value("root");
  source.fields = source_fields(*parsed);
  const int64_t mib = parsed->integer_or("size", 1024, 1, 1 << 20);
  if (source.patterns().empty()) throw Error(ErrorKind::usage, "no file or folder is named");

  const std::string out = *parsed->value("out");
  Progress progress("converting");
  const Converted done = convert(source, out, static_cast<uint64_t>(mib) << 20, {},
                                 [&](int64_t number, int64_t all) { progress.samples(number, all); });
  progress.finish();
  for (const std::string& reason : done.reasons) log_warning("broken: {}", reason);
  if (parsed->flag("json"))
    fmt::print(
        "{}",
        dump(Json{{"samples", done.samples}, {"broken", done.broken}, {"shards", done.shards}, {"bytes", done.bytes}}));
  else
    fmt::print("{}: {} in {}, {}; {} of them broken\n", out, counted(done.samples, "sample"),
               counted(done.shards, "shard"), human_bytes(done.bytes), grouped(done.broken));
  return 0;
}

} // namespace fvlm::cli
