"""The service that people write first: FastAPI and PyTorch, one sample a request.

    PORT=8001 python benchmarks/serving/serve_torch.py

Takes and gives what `caldera serve` does, for the network of `caldera train --data digits`.
"""

import os

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Flatten(),
    torch.nn.Linear(64, 256),
    torch.nn.ReLU(),
    torch.nn.Linear(256, 256),
    torch.nn.ReLU(),
    torch.nn.Linear(256, 10),
).eval()
app = FastAPI()


class Request(BaseModel):
    """The samples of a request."""

    samples: list[list[float]]


@app.get("/health")
async def health() -> dict[str, str]:
    """Whether it is ready."""
    return {"status": "ready"}


@app.post("/predict")
async def predict(request: Request) -> dict[str, list[dict[str, object]]]:
    """The class of each sample, with the probabilities of all."""
    with torch.inference_mode():
        x = torch.tensor(request.samples).reshape(-1, 1, 8, 8)
        probabilities = torch.softmax(model(x), dim=1)
    return {
        "predictions": [
            {
                "class": str(max(range(10), key=row.__getitem__)),
                "probability": max(row),
                "probabilities": {str(number): part for number, part in enumerate(row)},
            }
            for row in probabilities.tolist()
        ]
    }


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["PORT"]), log_level="error", access_log=False)
