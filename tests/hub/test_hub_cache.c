/* tests/hub/test_hub_cache.c - the shared cache, with every file call and allocation failing once. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "hub/hub_contents.h"
#include "hub/hub_remove.h"
#include "test.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define DIGEST "89abcdef0123456789abcdef0123456789abcdef"

/* An empty cache in a folder of its own. */
static void new_cache(char root[64])
{
    snprintf(root, 64, "/tmp/radish-hub-XXXXXX");
    if (mkdtemp(root)) setenv("HF_HUB_CACHE", root, 1);
}

static void remove_cache(const char *root)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    if (system(command)) test_note("%s stays", root);
}

/* "deep/file 5 89abcdef..": what is in the snapshot. */
static rd_status read_back(const struct hub_repo *r, char text[256])
{
    struct hub_entry *list;
    size_t n, k = 0;
    rd_status st = hub_repo_files(r, COMMIT, &list, &n, NULL);

    text[0] = 0;
    for (size_t i = 0; i < n && st == RD_OK; i++)
        k += (size_t)snprintf(text + k, 256 - k, "%.40s %lld %.8s;", list[i].path, (long long)list[i].n_bytes,
                              list[i].digest);
    mem_free(list);
    return st;
}

/* All that a pull does to the cache. */
static rd_status fill(struct rd_error *err)
{
    struct hub_repo r;
    rd_status st = hub_repo_open("org/name", true, &r, err);
    char path[128], commit[HUB_COMMIT_BYTES];
    int blobs = -1;

    if (st != RD_OK) return st;
    st = hub_open_folder(r.fd, "blobs", true, &blobs, err);
    if (st == RD_OK) {
        close(blobs);
        snprintf(path, sizeof(path), "%.80s/blobs/" DIGEST, r.path);
        st = file_write_all(path, "12345", 5, err);
    }
    if (st == RD_OK) st = hub_repo_link(&r, COMMIT, "deep/file", DIGEST, err);
    if (st == RD_OK) st = hub_repo_set_commit(&r, "refs/pr/1", COMMIT, err);
    if (st == RD_OK) st = hub_repo_commit(&r, "refs/pr/1", commit, err);
    if (st == RD_OK && strcmp(commit, COMMIT)) st = RD_E_INTERNAL;
    hub_repo_close(&r);
    return st;
}

TEST(what_is_put_in_is_found)
{
    char text[256];
    struct hub_repo r;
    char root[64], path[LIMIT_PATH_BYTES], commit[HUB_COMMIT_BYTES];

    new_cache(root);
    CHECK_EQ(hub_repo_open("org/name", false, &r, NULL), RD_E_NOT_FOUND);
    CHECK_OK(fill(NULL));
    CHECK_OK(fill(NULL)); /* again: the same */
    CHECK_OK(hub_repo_open("org/name", false, &r, NULL));
    CHECK(hub_repo_has_blob(&r, DIGEST, 5) && !hub_repo_has_blob(&r, DIGEST, 6));
    CHECK_OK(read_back(&r, text));
    CHECK_STR(text, "deep/file 5 89abcdef;");
    CHECK_OK(hub_repo_path(&r, COMMIT, "deep/file", path, NULL));
    CHECK(file_exists(path));
    CHECK_EQ(hub_repo_commit(&r, "main", commit, NULL), RD_E_NOT_FOUND);
    CHECK_EQ(hub_repo_commit(&r, "../../x", commit, NULL), RD_E_INVALID);
    CHECK_EQ(hub_repo_set_commit(&r, "../../x", COMMIT, NULL), RD_E_INVALID);
    CHECK_EQ(hub_repo_set_commit(&r, "main", "../../x", NULL), RD_E_INVALID);
    CHECK_EQ(hub_repo_link(&r, COMMIT, "../x", DIGEST, NULL), RD_E_INVALID);
    CHECK_EQ(hub_repo_link(&r, COMMIT, "x", "../x", NULL), RD_E_INVALID);
    CHECK_EQ(hub_repo_link(&r, "../x", "x", DIGEST, NULL), RD_E_INVALID);
    hub_repo_close(&r);
    remove_cache(root);
}

TEST(a_reference_that_holds_no_commit_is_none)
{
    static const char *const texts[] = {"", "main", "../../../../etc", COMMIT "0", "0123"};
    struct hub_repo r;
    char root[64], path[256], commit[HUB_COMMIT_BYTES];

    new_cache(root);
    CHECK_OK(fill(NULL));
    CHECK_OK(hub_repo_open("org/name", false, &r, NULL));
    snprintf(path, sizeof(path), "%.80s/refs/main", r.path);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        CHECK_OK(file_write_all(path, texts[i], strlen(texts[i]), NULL));
        CHECK_EQ(hub_repo_commit(&r, "main", commit, NULL), RD_E_FORMAT);
    }
    CHECK_OK(file_write_all(path, COMMIT "\n", 41, NULL));
    CHECK_OK(hub_repo_commit(&r, "main", commit, NULL));
    hub_repo_close(&r);
    remove_cache(root);
}

TEST(every_file_call_may_fail)
{
    rd_status st = RD_E_IO;

    for (int64_t i = 0; st != RD_OK; i++) {
        struct rd_error err = {RD_OK, ""};
        char root[64];

        CHECK(i < 200);
        new_cache(root);
        file_fail_after(i);
        st = fill(&err);
        file_fail_after(-1);
        CHECK(st == RD_OK || (st == RD_E_IO && err.text[0]));
        CHECK_OK(fill(NULL)); /* what a failure leaves is in nobody's way */
        remove_cache(root);
    }
}

TEST(every_allocation_may_fail)
{
    char text[256];
    struct hub_repo r;
    rd_status st = RD_E_NOMEM;
    uint64_t before;
    char root[64];

    new_cache(root);
    CHECK_OK(fill(NULL));
    before = mem_n_alive();
    for (int64_t i = 0; st != RD_OK; i++) {
        CHECK_OK(hub_repo_open("org/name", false, &r, NULL));
        mem_fail_after(i);
        st = read_back(&r, text);
        mem_fail_after(-1);
        hub_repo_close(&r);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), before);
    }
    CHECK_STR(text, "deep/file 5 89abcdef;");
    remove_cache(root);
}

TEST(where_the_cache_is)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
    static const char *const roots[] = {"/a", "/b", "/c/hub", "/d/huggingface/hub", "/e/.cache/huggingface/hub"};
    static const char *const values[] = {"/a", "/b", "/c", "/d", "/e"};
    char root[LIMIT_PATH_BYTES / 4];

    for (size_t i = 0; i < 5; i++) setenv(names[i], values[i], 1);
    for (size_t i = 0; i < 5; i++) {
        CHECK_OK(hub_cache_root(root, NULL));
        CHECK_STR(root, roots[i]);
        setenv(names[i], "", 1); /* empty is as if it were not set */
    }
    CHECK_EQ(hub_cache_root(root, NULL), RD_E_INVALID);
    setenv("HOME", "/e", 1);
    setenv("HF_HOME", "~/x", 1);
    CHECK_OK(hub_cache_root(root, NULL));
    CHECK_STR(root, "/e/x/hub");
}

static bool is_any(void *arg, const char *path)
{
    (void)arg, (void)path;
    return true;
}

TEST(a_removal_with_a_fault_says_so_and_the_next_one_ends_it)
{
    rd_status st = RD_E_IO;
    uint64_t n;

    for (int64_t i = 0; st != RD_OK; i++) {
        struct rd_error err = {RD_OK, ""};
        struct hub_repo_name *list;
        char root[64];
        size_t n_list;

        CHECK(i < 200);
        new_cache(root);
        CHECK_OK(fill(NULL));
        file_fail_after(i);
        st = hub_repo_remove("org/name", COMMIT, is_any, NULL, false, &n, &err);
        file_fail_after(-1);
        CHECK(st == RD_OK || err.text[0]);
        if (st == RD_OK) CHECK_EQ(n, 5 + 40); /* the blob, and the reference */
        if (st != RD_OK && hub_cache_repos(&list, &n_list, NULL) == RD_OK) {
            if (n_list) CHECK_OK(hub_repo_remove_all("org/name", false, &n, &err));
            mem_free(list);
        }
        CHECK_OK(hub_cache_repos(&list, &n_list, NULL));
        CHECK_EQ(n_list, 0);
        mem_free(list);
        remove_cache(root);
    }
}

TEST(what_is_in_use_is_not_removed)
{
    struct hub_repo r;
    char root[64];
    uint64_t n;

    new_cache(root);
    CHECK_OK(fill(NULL));
    CHECK_OK(hub_repo_open("org/name", true, &r, NULL));
    CHECK_EQ(hub_repo_remove_all("org/name", false, &n, NULL), RD_E_AGAIN);
    CHECK_EQ(hub_repo_remove("org/name", COMMIT, is_any, NULL, false, &n, NULL), RD_E_AGAIN);
    hub_repo_close(&r);
    CHECK_OK(hub_repo_remove_all("org/name", true, &n, NULL));
    CHECK_OK(hub_repo_remove_all("org/name", false, &n, NULL));
    CHECK_EQ(hub_repo_remove_all("org/name", false, &n, NULL), RD_E_NOT_FOUND);
    remove_cache(root);
}

TEST(whose_path_it_is)
{
    char repo[HUB_REPO_BYTES], commit[HUB_COMMIT_BYTES], file[HUB_FILE_BYTES];

    CHECK(hub_whose_path("/a/hub/models--org--na-me/snapshots/" COMMIT "/d/f.gguf", repo, commit, file));
    CHECK_STR(repo, "org/na-me");
    CHECK_STR(commit, COMMIT);
    CHECK_STR(file, "d/f.gguf");
    CHECK(hub_whose_path("/models--org--name/snapshots/" COMMIT, repo, commit, file) && !*file);
    CHECK(!hub_whose_path("/models--org--name/snapshots/" COMMIT "x", repo, commit, file));
    CHECK(!hub_whose_path("/models--org/snapshots/" COMMIT, repo, commit, file));
    CHECK(!hub_whose_path("/models--org--name/snapshots/main/f", repo, commit, file));
    CHECK(!hub_whose_path("/home/x/f.gguf", repo, commit, file));
}
