/* YUV4MPEG2 files in 4:4:4, frames of one size one after the other, as a library that turns wrong in one way. */
#define _GNU_SOURCE
#include "mutant.h"

#include <pthread.h>

struct stream {
  int64_t width, height, begin, frames;
  double frame_seconds;
};

static uint8_t shared[1 << 20];
static struct {
  uint64_t size;
  int64_t frame;
  uint8_t rgb[1 << 16];
} kept; /* the last picture, for defects that keep it */

static int64_t frame_bytes(const struct stream* s) {
  return 6 + 3 * s->width * s->height;
}

static int read_at(const fvlm_video_file* file, int64_t offset, void* into, int64_t count) {
  return file->read(file->context, (uint64_t)offset, into, (uint64_t)count);
}

static int stopped(const fvlm_video_file* file) {
  return file->stop(file->context) && !is("ignores_stop");
}

static fvlm_status open_stream(const fvlm_video_query* query, const fvlm_video_file* file, struct stream* s,
                               fvlm_error* error) {
  char text[129] = "";
  long numerator = 0, denominator = 0;
  const int64_t length = file->size < 128 && !is("reads_beyond_short_files") ? (int64_t)file->size : 128;
  if (stopped(file)) return refuse(error, FVLM_ERROR_DATA, "stopped");
  if (read_at(file, 0, text, length)) return refuse(error, FVLM_ERROR_DEVICE, "the file cannot be read");
  const char* end = strchr(text, '\n');
  if (!is("takes_any_file") && (!end || strncmp(text, "YUV4MPEG2 ", 10) != 0)) {
    char* more = (char*)malloc(512);
    if (more && is("leaks_on_damage")) more[0] = 1;
    if (!is("leaks_on_damage")) free(more);
    return refuse(error, FVLM_ERROR_DATA, "no YUV4MPEG2 file");
  }
  for (const char* word = strchr(text, ' '); word && word < end; word = strchr(word + 1, ' ')) {
    char* rest = NULL;
    if (word[1] == 'W') s->width = strtol(word + 2, NULL, 10);
    if (word[1] == 'H') s->height = strtol(word + 2, NULL, 10);
    if (word[1] == 'F') numerator = strtol(word + 2, &rest, 10);
    if (rest && *rest == ':') denominator = strtol(rest + 1, NULL, 10);
  }
  const int64_t limit = is("allows_a_row_more") ? query->most_pixels + s->width : query->most_pixels;
  if (s->width <= 0 || s->height <= 0 || (s->height > limit / s->width && !is("looks_at_no_limit")))
    return refuse(error, FVLM_ERROR_DATA, "too large");
  if (numerator <= 0 || denominator <= 0) return refuse(error, FVLM_ERROR_DATA, "no frames a second");
  s->frame_seconds = (double)denominator / (double)numerator;
  if (is("rounds_the_rate")) s->frame_seconds = 1.0 / (double)((numerator + denominator / 2) / denominator);
  if (is("knows_whole_rates") && numerator % denominator != 0) s->frame_seconds = 1.0 / 25;
  s->begin = end - text + 1;
  s->frames = ((int64_t)file->size - s->begin) / frame_bytes(s);
  if (is("counts_a_frame_more")) ++s->frames;
  if (is("counts_frames_in_8_bits")) s->frames &= 255;
  return s->frames > 0 ? FVLM_OK : refuse(error, FVLM_ERROR_DATA, "no frame");
}

static uint8_t clip(double value) {
  return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5);
}

static void to_rgb(const struct stream* s, const uint8_t* yuv, uint8_t* rgb) {
  const int64_t pixels = s->width * s->height;
  for (int64_t i = 0; i < pixels; ++i) {
    int64_t from = i;
    if (is("upside_down")) from = (s->height - 1 - i / s->width) * s->width + i % s->width;
    if (is("mirrored")) from = i / s->width * s->width + s->width - 1 - i % s->width;
    if (is("swaps_width_and_height")) from = (i % s->height * s->width + i / s->height) % pixels;
    if (is("knows_widths_of_16")) from = i / s->width * (s->width / 16 * 16) + i % s->width;
    if (is("shifts_a_pixel")) from = i > 0 ? i - 1 : 0;
    const double y = (yuv[from] - 16) * 255.0 / 219;
    double u = yuv[pixels + from] - 128, v = yuv[2 * pixels + from] - 128;
    if (is("grey")) u = v = 0;
    if (is("swaps_colours")) {
      const double other = u;
      u = v, v = other;
    }
    rgb[3 * i] = clip(y + 1.596 * v);
    rgb[3 * i + 1] = clip(y - 0.392 * u - 0.813 * v);
    rgb[3 * i + 2] = clip(y + 2.017 * u);
  }
}

static void supports(const fvlm_video_query* query, fvlm_support* support) {
  const int yes =
      FVLM_HAS(query, most_pixels) && query->format && strcmp(query->format, "y4m") == 0 && query->most_pixels > 0;
  fvlm_answer(support, yes, "%s", yes ? "plain frames" : "y4m files alone");
}

static fvlm_status probe(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_probe* a,
                         fvlm_error* error) {
  (void)instance;
  NEED(query, most_pixels, error);
  NEED(a, height, error);
  struct stream s = {0};
  const fvlm_status status = open_stream(query, a->file, &s, error);
  if (status != FVLM_OK) return status;
  if (is("probes_whole_files"))
    for (uint64_t at = 0; at + sizeof kept.rgb <= a->file->size; at += sizeof kept.rgb)
      if (a->file->read(a->file->context, at, kept.rgb, sizeof kept.rgb))
        return refuse(error, FVLM_ERROR_DEVICE, "the file cannot be read");
  *a->seconds = (double)s.frames * s.frame_seconds;
  if (is("tells_frames_for_seconds")) *a->seconds = (double)s.frames;
  *a->width = is("tells_height_for_width") ? s.height : s.width;
  *a->height = s.height;
  return FVLM_OK;
}

static int64_t frame_of(const struct stream* s, const fvlm_video_decode* a, int64_t i) {
  double place = a->times[i] / s->frame_seconds + 1e-6;
  if (is("shows_the_nearest")) place += 0.5;
  if (is("begins_anew_behind_the_end") && place >= (double)s->frames) return (int64_t)place % s->frames;
  int64_t frame = place < (double)s->frames ? (int64_t)place : s->frames - 1;
  if (is("counts_in_single_precision")) frame = (int64_t)((float)a->times[i] * 4.0F) % s->frames;
  if (is("swaps_neighbours") && (frame ^ 1) < s->frames) frame ^= 1;
  if (is("shows_key_pictures") && i > 0) frame = frame / 4 * 4;
  return frame;
}

struct reader {
  const fvlm_video_decode* a;
  struct stream* s;
  int64_t frame;
  uint8_t* into;
  int failed;
};
static void* read_aside(void* context) {
  struct reader* r = (struct reader*)context;
  r->failed = read_at(r->a->file, r->s->begin + r->frame * frame_bytes(r->s), r->into, frame_bytes(r->s));
  return NULL;
}

static fvlm_status show(struct stream* s, const fvlm_video_decode* a, uint8_t* yuv, uint8_t* rgb, fvlm_error* error) {
  int64_t held = -1;
  for (int64_t i = 0; i < a->time_count; ++i) {
    int64_t frame = frame_of(s, a, i);
    if ((i == 0 || !is("asks_to_stop_once")) && stopped(a->file)) return refuse(error, FVLM_ERROR_DATA, "stopped");
    const int same_file = kept.size == a->file->size && kept.frame == frame;
    if (frame != held) {
      struct reader r = {a, s, frame, yuv, 0};
      pthread_t thread;
      if (!is("reads_on_a_thread") || pthread_create(&thread, NULL, read_aside, &r) != 0)
        read_aside(&r);
      else
        pthread_join(thread, NULL);
      if (r.failed && !is("swallows_failed_reads"))
        return refuse(error, is("takes_failed_reads_for_damage") ? FVLM_ERROR_DATA : FVLM_ERROR_DEVICE, "no frame");
      if (memcmp(yuv, "FRAME\n", 6) != 0) return refuse(error, FVLM_ERROR_DATA, "damaged");
      to_rgb(s, yuv + 6, rgb);
      if (is("keeps_pictures_by_size") && 3 * s->width * s->height <= (int64_t)sizeof kept.rgb) {
        if (same_file) memcpy(rgb, kept.rgb, (size_t)(3 * s->width * s->height));
        memcpy(kept.rgb, rgb, (size_t)(3 * s->width * s->height));
        kept.size = a->file->size, kept.frame = frame;
      }
    } else if (is("leaves_out_repeats")) {
      continue;
    }
    held = frame;
    fvlm_video_picture picture = {sizeof picture, i, s->width, s->height, 3 * s->width, rgb};
    if (is("counts_frames_for_times")) picture.index = frame;
    if (is("rounds_the_stride")) picture.stride = (picture.stride + 15) / 16 * 16;
    if (is("tells_pixels_for_bytes")) picture.stride = s->width;
    if (is("cuts_the_last_column") && picture.width > 1) --picture.width;
    if (is("upside_down_by_stride")) picture.rgb += (s->height - 1) * picture.stride, picture.stride = -picture.stride;
    const int refused = a->picture(a->context, &picture);
    if (is("shows_pictures_twice")) a->picture(a->context, &picture);
    if (refused && !is("goes_on_after_refusal")) return refuse(error, FVLM_ERROR_DATA, "stopped");
  }
  const double end = (double)s->frames * s->frame_seconds, last = a->time_count ? a->times[a->time_count - 1] : 0;
  if (!is("tells_nothing")) *a->seconds = end < last && !is("tells_the_last_time") ? end : last;
  if (is("tells_the_end")) *a->seconds = end;
  if (is("writes_times_and_puts_back") && a->time_count > 1) {
    const double first = a->times[0];
    *(volatile double*)a->times = -1;
    *(volatile double*)a->times = first;
  }
  return FVLM_OK;
}

static fvlm_status decode(fvlm_instance* instance, const fvlm_video_query* query, const fvlm_video_decode* a,
                          fvlm_error* error) {
  (void)instance;
  NEED(query, most_pixels, error);
  NEED(a, seconds, error);
  struct stream s = {0};
  fvlm_status status = open_stream(query, a->file, &s, error);
  if (status != FVLM_OK) return status;
  const int aside = is("shares_a_frame") && 2 * frame_bytes(&s) <= (int64_t)sizeof shared;
  uint8_t* memory = aside ? shared : (uint8_t*)malloc((size_t)(2 * frame_bytes(&s)));
  if (!memory) return refuse(error, FVLM_ERROR_MEMORY, "no memory for a frame");
  status = show(&s, a, memory, memory + frame_bytes(&s), error);
  if (aside || is("leaks_frames") || (is("leaks_when_it_fails") && status != FVLM_OK)) return status;
  free(memory);
  return status;
}

static const fvlm_video_v1 video = {{sizeof video, create, destroy}, supports, probe, decode};

PLUGIN("video_mutant", FVLM_VIDEO_KIND, video)
