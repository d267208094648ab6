#include "gguf/export.h"

#include "base/atomic_file.h"
#include "gguf/parts.h"

namespace fvlm::gguf {

ExportReport export_model(const ExportRequest& request, const TransferProgress& progress) {
  const ModelDirectory model = ModelDirectory::open(request.model);
  model.require_no_adapters("export --gguf");
  model.require_plain("export --gguf");
  std::vector<File> files{decoder_file(model, *request.type)};
  if (!request.decoder_only && model.description().connector()->reads_frames())
    files.push_back(vision_file(model, *request.type));
  AtomicFolder folder(request.out);
  model.verify();

  ExportReport report;
  uint64_t done = 0, total = 0;
  for (const File& file : files) total += file.tensor_bytes();
  for (const File& file : files) {
    file.write(
        folder.temporary_path(), [&](uint64_t bytes) { progress(done += bytes, total); }, report.overflowed);
    ExportReport::FileReport each{.name = file.name, .bytes = file.tensor_bytes()};
    for (const Tensor& tensor : file.tensors) {
      each.parameters += static_cast<uint64_t>(tensor.elements());
      ++each.tensors[tensor.type->name];
    }
    report.files.push_back(std::move(each));
  }
  folder.commit();
  return report;
}

} // namespace fvlm::gguf
