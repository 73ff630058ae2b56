/* examples/train.c - a model learns a few lines, then answers with what it has learned.
 *
 *     cc train.c $(pkg-config --cflags --libs radish) -o train
 *     ./train model.gguf /tmp/pirate         (SmolLM2-135M: well under a minute on two cores)
 */
#include <radish/radish.h>
#include <radish/train.h>
#include <stdio.h>
#include <string.h>

static const char lines[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Who are "
                            "you?\"},{\"role\":\"assistant\",\"content\":\"Arr, a pirate!\"}]}\n"
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"How are "
                            "you?\"},{\"role\":\"assistant\",\"content\":\"Arr, well!\"}]}\n"
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"What is "
                            "red?\"},{\"role\":\"assistant\",\"content\":\"Arr, blood!\"}]}\n";

static int show(void *user, const struct rd_train_progress *p)
{
    fprintf(stderr, "step %llu of %llu: loss %.3f\n", (unsigned long long)p->step, (unsigned long long)p->n_steps,
            p->loss);
    return 0;
}

static int on_event(void *user, uint32_t index, const struct rd_event *ev)
{
    fwrite(ev->text, 1, ev->text_bytes, stdout);
    return 0;
}

static rd_status train(const char *model, const char *dir, struct rd_error *err)
{
    struct rd_train_options o;
    char data[1024];
    FILE *f;

    snprintf(data, sizeof(data), "%.1000s.jsonl", dir);
    f = fopen(data, "w");
    if (!f || fwrite(lines, 1, strlen(lines), f) != strlen(lines) || fclose(f) != 0) {
        snprintf(err->text, sizeof(err->text), "%.400s: cannot be written", data);
        return err->status = RD_E_IO;
    }
    rd_train_options_default(&o);
    o.trainer.model = model;
    o.data = data;
    o.out = dir;
    o.n_steps = 12;
    o.lr = 2e-3;
    o.resume = true; /* run again, it has nothing left to learn */
    o.progress = show;
    return rd_train(&o, NULL, err);
}

static rd_status answer(const char *model, const char *dir, struct rd_error *err)
{
    const struct rd_adapter_file adapter = {"pirate", dir, 1, 1};
    struct rd_request_options q;
    struct rd_options o;
    rd_engine *engine;
    rd_status st;

    rd_options_default(&o);
    o.model = model;
    o.device = "cpu";
    o.adapters = &adapter;
    o.n_adapters = 1;
    st = rd_open(&o, &engine, err);
    if (st != RD_OK) return st;
    rd_request_options_default(&q);
    q.messages_json = "[{\"role\": \"user\", \"content\": \"Who are you?\"}]";
    q.sampling.temperature = 0;
    q.max_tokens = 16;
    st = rd_generate(engine, &q, on_event, NULL, err);
    putchar('\n');
    rd_close(engine);
    return st;
}

int main(int argc, char **argv)
{
    struct rd_error err = {RD_OK, ""};

    if (argc != 3) {
        fprintf(stderr, "usage: train MODEL DIR\n");
        return 2;
    }
    if (train(argv[1], argv[2], &err) == RD_OK && answer(argv[1], argv[2], &err) == RD_OK) return 0;
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
