/* A driver library that does as it is told: what pynvml calls when energy is metered, over cards that a test sets up
 * through `stub_host`. Built by the tests with the system's compiler. CC0. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, MAX_CARDS = 8 };

struct card {
    char uuid[64];
    char name[64];
    uint64_t energy_mj;
    uint32_t power_mw;
    uint32_t mig;
    int32_t energy_error; /* what the call returns in place of a value, 0 for none */
    int32_t power_error;
    int32_t mig_error;
    int32_t handle_error;
    uint32_t step_mj; /* what each look at the energy adds */
    uint32_t looks;
};

struct host {
    int32_t init_error;
    uint32_t count;
    int32_t open; /* calls of init not yet undone; a reloaded driver forgets them */
    struct card cards[MAX_CARDS];
} stub_host;

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    if (stub_host.init_error) return stub_host.init_error;
    stub_host.open++;
    return SUCCESS;
}

int nvmlShutdown(void)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    stub_host.open--;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    static char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    *count = stub_host.count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    if (index >= stub_host.count) return INVALID_ARGUMENT;
    if (stub_host.cards[index].handle_error) return stub_host.cards[index].handle_error;
    *handle = &stub_host.cards[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    for (unsigned int index = 0; index < stub_host.count; index++)
        if (strcmp(stub_host.cards[index].uuid, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2(index, handle);
    return NOT_FOUND;
}

static int copied(const char *text, char *out, unsigned int length)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    if (strlen(text) >= length) return INVALID_ARGUMENT;
    strcpy(out, text);
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct card *card, char *out, unsigned int length) { return copied(card->uuid, out, length); }

int nvmlDeviceGetName(struct card *card, char *out, unsigned int length) { return copied(card->name, out, length); }

int nvmlDeviceGetTotalEnergyConsumption(struct card *card, unsigned long long *mj)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    card->looks++;
    if (card->energy_error) return card->energy_error;
    card->energy_mj += card->step_mj;
    *mj = card->energy_mj;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(struct card *card, unsigned int *mw)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    card->looks++;
    if (card->power_error) return card->power_error;
    *mw = card->power_mw;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(struct card *card, unsigned int *current, unsigned int *pending)
{
    if (stub_host.open <= 0) return UNINITIALIZED;
    if (card->mig_error) return card->mig_error;
    *current = *pending = card->mig;
    return SUCCESS;
}
