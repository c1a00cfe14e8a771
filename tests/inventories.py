from synergai.domain import Engine, EngineName
from worker_agent.inventory import Inventory


async def described(inventory: Inventory) -> dict[EngineName, Engine]:
    engines = await inventory.discover()
    await inventory.describe(engines, lambda engine: engines.__setitem__(engine.name, engine))
    return engines
