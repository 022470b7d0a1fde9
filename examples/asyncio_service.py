"""Trace concurrent sessions on one event loop, one trace per session. Run `python examples/asyncio_service.py`."""

import asyncio

import ckpt_observe

watch = ckpt_observe.observe(service="sessions")


@ckpt_observe.checkpoint("save")
async def save(state: dict) -> None:
    async with ckpt_observe.phase("write") as phase:
        await asyncio.sleep(0.01)  # stands for a database call
        phase.set({"checkpoint.phase.bytes_in": len(str(state))})


async def session(number: int) -> None:
    async with ckpt_observe.task("chat", id=f"chat-{number}", session=f"s-{number}"):
        for turn in range(2):
            await save({"turn": turn})


async def main() -> None:
    await asyncio.gather(*(session(number) for number in range(5)))


asyncio.run(main())
watch.close()
print("Saved 5 sessions. To see their traces, run: ckpt-observe traces --task chat")
